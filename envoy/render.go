package envoy

import (
	"embed"
	"encoding/json"
	"fmt"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"text/template"

	"sigs.k8s.io/yaml"

	"xds-server/envoy/lua"
	"xds-server/pkg/config"
)

//go:embed templates/*.tmpl
var files embed.FS

// internalHeaders are those that only Envoy itself may set, besides the headers of an identity.
var internalHeaders = []string{"x-id-state", "x-gvr", "x-subresource", "x-document", "x-kubernetes-peer-proxied", "x-peer-undelivered"}

// stripped is every header, and every prefix of one, of which a client's own copies are removed before anything reads
// them. Names that begin with a prefix need no entry of their own.
func stripped(o Options) (headers, prefixes []string) {
	prefixes = []string{"x-remote-"}
	for _, p := range o.ExtraHeadersPrefixes {
		prefixes = append(prefixes, strings.ToLower(p))
	}
	headers = slices.Clone(internalHeaders)
	for _, h := range slices.Concat(o.UsernameHeaders, o.GroupHeaders, o.UIDHeaders) {
		headers = append(headers, strings.ToLower(h))
	}
	covered := func(name string) bool {
		return slices.ContainsFunc(prefixes, func(p string) bool { return p != name && strings.HasPrefix(name, p) })
	}
	return slices.DeleteFunc(headers, covered), slices.DeleteFunc(slices.Clone(prefixes), covered)
}

// RemovedHeaders are kept off the wire to an apiserver: internal ones, and those that Envoy adds for other Envoys.
var RemovedHeaders = []string{"x-id-state", "x-gvr", "x-subresource", "x-document", "x-envoy-internal", "x-envoy-external-address"}

// Bootstrap is the node's complete Envoy configuration, as YAML.
func Bootstrap(o Options) ([]byte, error) {
	if err := o.Validate(); err != nil {
		return nil, err
	}
	r := &renderer{}
	t, err := template.New("").Funcs(r.funcs()).ParseFS(files, "templates/*.tmpl")
	if err != nil {
		return nil, fmt.Errorf("parsing the bootstrap's templates: %w", err)
	}
	r.templates = t
	out, err := r.include("bootstrap.yaml.tmpl", o)
	if err != nil {
		return nil, fmt.Errorf("rendering the bootstrap: %w", err)
	}
	return []byte(out), nil
}

// Secrets is the SDS files that the bootstrap and the clusters of xds-server refer to, by file name. They hold the
// paths of certificates and keys, never their content.
func Secrets(o Options) (map[string][]byte, error) {
	pair := func(cert, key string) map[string]any {
		return map[string]any{"tls_certificate": map[string]any{
			"certificate_chain": map[string]any{"filename": cert}, "private_key": map[string]any{"filename": key},
		}}
	}
	ca := func(file string) map[string]any {
		return map[string]any{"validation_context": map[string]any{"trusted_ca": map[string]any{"filename": file}}}
	}
	secrets := map[string]map[string]any{
		"serving":        pair(o.ServingCertFile, o.ServingKeyFile),
		"front-proxy":    pair(o.FrontProxyCertFile, o.FrontProxyKeyFile),
		"client-ca":      ca(o.ClientCAFile),
		"front-proxy-ca": ca(o.FrontProxyCAFile),
		"server-ca":      ca(o.ServerCAFile),
	}
	out := make(map[string][]byte, len(secrets))
	for name, secret := range secrets {
		secret["@type"] = "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.Secret"
		secret["name"] = name
		b, err := yaml.Marshal(map[string]any{"resources": []any{secret}})
		if err != nil {
			return nil, fmt.Errorf("rendering the secret %q: %w", name, err)
		}
		out[SecretFile(name)] = b
	}
	return out, nil
}

// SecretFile is the name of a secret's SDS file in SecretsDir.
func SecretFile(name string) string { return name + ".yaml" }

// renderer holds what the templates' functions need.
type renderer struct{ templates *template.Template }

func (r *renderer) include(name string, data any) (string, error) {
	var b strings.Builder
	err := r.templates.ExecuteTemplate(&b, name, data)
	return b.String(), err
}

// The values that templates hand to one another.
type (
	chain struct {
		Options
		// Chain is routed, fallback, views (the peer listener's, for xds-servers) or peer (for Envoys).
		Chain                                             string
		StrippedHeaders, StrippedPrefixes, RemovedHeaders []string
	}
	variant struct {
		Options
		Variant string
	}
	service struct {
		Options
		Cluster string
	}
	tlsOf struct {
		Options Options
		CA      string
	}
	namesOf struct {
		Options Options
		Names   []string
	}
	upstream struct {
		Options           Options
		Name              string
		ClientCertificate bool
	}
)

func (r *renderer) funcs() template.FuncMap {
	return template.FuncMap{
		"include": r.include,
		"q":       quote,
		"indent":  indent,
		"address": addressYAML,
		"forwarded": func() []string {
			return []string{":method", ":path", ":status", "accept", "accept-encoding", "if-none-match", "etag", "content-type", "x-kubernetes-peer-proxied"}
		},
		"states":        func() []string { return []string{"fp", "plain"} },
		"xdsServerName": func() string { return config.ServingName },
		"script":        script,
		"guard":         guard,
		"subjectRegex":  subjectRegex,
		"sds": func(o Options, name string) (string, error) {
			return r.include("sds", map[string]string{"Path": filepath.Join(o.SecretsDir, SecretFile(name))})
		},
		"chain": func(o Options, name string) chain {
			headers, prefixes := stripped(o)
			return chain{Options: o, Chain: name, StrippedHeaders: headers, StrippedPrefixes: prefixes, RemovedHeaders: RemovedHeaders}
		},
		"variant":  func(o Options, v string) variant { return variant{Options: o, Variant: v} },
		"service":  func(o Options, cluster string) service { return service{Options: o, Cluster: cluster} },
		"tls":      func(o Options, ca string) tlsOf { return tlsOf{Options: o, CA: ca} },
		"names":    func(o Options, n []string) namesOf { return namesOf{Options: o, Names: n} },
		"upstream": func(o Options, name string, cert bool) upstream { return upstream{o, name, cert} },
	}
}

// quote writes a string as YAML (JSON's strings are YAML's), so that no value can become structure.
func quote(s string) (string, error) {
	b, err := json.Marshal(s)
	return string(b), err
}

// indent puts spaces before every line but the first; a leading call stands at its own column already.
func indent(n int, s string) string {
	pad := strings.Repeat(" ", n)
	lines := strings.Split(strings.TrimRight(s, "\n"), "\n")
	for i, l := range lines {
		if l != "" {
			lines[i] = pad + l
		}
	}
	return strings.Join(lines, "\n")
}

// addressYAML is an Envoy address from IP:port or unix:PATH.
func addressYAML(a string) (string, error) {
	if path, ok := strings.CutPrefix(a, "unix:"); ok {
		p, err := quote(path)
		return "pipe: {path: " + p + ", mode: 432}", err
	}
	host, p, err := net.SplitHostPort(a)
	if err != nil {
		return "", fmt.Errorf("address %q: %w", a, err)
	}
	h, err := quote(host)
	return fmt.Sprintf("socket_address: {address: %s, port_value: %d}", h, port(p)), err
}

// script is the Lua of one filter chain.
func script(c chain) (string, error) {
	scripts := lua.Config{CAFile: c.ClientCAFile, Allowed: c.XDSServerNames}
	switch c.Chain {
	case "routed":
		return lua.Front(scripts), nil
	case "fallback":
		return lua.Fallback(scripts), nil
	case "views":
		return lua.Reader(scripts), nil
	default:
		return "", fmt.Errorf("the chain %q has no script", c.Chain)
	}
}

// guard is the Lua of one of the guards that routes name.
func guard(name string) (string, error) {
	switch name {
	case "peer":
		return lua.PeerGuard(), nil
	case "unknown":
		return lua.UnknownGuard(), nil
	default:
		return "", fmt.Errorf("there is no guard %q", name)
	}
}
