package config

import (
	"fmt"
	"strings"
	"time"

	"github.com/spf13/pflag"
)

// EnvPrefix begins the name of every environment variable that sets a key.
const EnvPrefix = "XDS_SERVER_"

// configFlag names the configuration file. It is a flag and an environment variable, but no key of the file.
const configFlag = "config"

// setting is one key: how it is set and what it means. The environment variable follows from the flag.
type setting struct {
	key   string // path of the key in the file
	flag  string // Kubernetes' own name for the same thing, where it has one
	value any    // default; its type is the flag's
	usage string
}

// settings is the one table of all keys. A test holds it against Config, and Reference prints it.
var settings = []setting{
	{"nodeName", "node-name", "", "name of the node that this xds-server runs on"},
	{"localAddress", "local-address", "", "host:port of this node's own kube-apiserver, which is then read directly and not through its peer listener; needs nodeName"},
	{"servers", "servers", []string{}, "the kube-apiservers as name=host:port of the node's Envoy peer listener, or name=host:port/direct for a kube-apiserver's own port (in the file: a list of name, address, direct)"},
	{"endpointSlice.enabled", "endpoint-slice", false, "find the kube-apiservers in the EndpointSlice kubernetes of namespace default, instead of servers"},
	{"endpointSlice.kubeconfig", "kubeconfig", "", "kubeconfig to read the EndpointSlice with; empty: the pod's own service account"},
	{"endpointSlice.peerPort", "peer-port", 6445, "port of the nodes' Envoy peer listeners, or of the kube-apiservers if endpointSlice.direct"},
	{"endpointSlice.direct", "endpoint-slice-direct", false, "peerPort is the kube-apiservers' own port, with no Envoy before it"},
	{"endpointSlice.names", "endpoint-slice-names", map[string]string{}, "node names by address, as 10.0.0.11=cp-1; a server that is not named here is named by its bare address"},
	{"peerCAFile", "peer-ca-file", "", "CA that signed the kube-apiservers' serving certificates"},
	{"tlsCertFile", "tls-cert-file", "", "xds-server's own certificate: client to the kube-apiservers, server to other nodes' Envoys"},
	{"tlsPrivateKeyFile", "tls-private-key-file", "", "key of tlsCertFile"},
	{"socket", "socket", "/run/xds-server/xds.sock", "unix socket for this node's Envoy; empty: none"},
	{"listen", "listen", "", "host:port for other nodes' Envoys, over mutual TLS; empty: none"},
	{"listenClientCAFile", "listen-client-ca-file", "", "CA of the client certificates that listen accepts: the front-proxy CA"},
	{"listenAllowedNames", "listen-allowed-names", []string{"front-proxy-client"}, "common names of the client certificates that listen accepts"},
	{"adminAddress", "admin-address", "127.0.0.1:9985", "host:port for /livez, /readyz and /metrics, which ask nobody who they are: loopback unless the network is trusted"},
	{"pollInterval", "poll-interval", 2 * time.Second, "time between two reads of a kube-apiserver's readiness and discovery"},
	{"pollTimeout", "poll-timeout", 5 * time.Second, "time that one whole read may take"},
	{"hold", "hold", time.Hour, "how long the last view of a kube-apiserver counts that can't be read any more"},
	{"logLevel", "log-level", "info", "debug, info, warn or error"},
	{"logFormat", "log-format", "json", "json or console"},
}

func (s setting) env() string {
	return EnvPrefix + strings.ToUpper(strings.ReplaceAll(s.flag, "-", "_"))
}

// AddFlags defines the flag of every key, and --config.
func AddFlags(fs *pflag.FlagSet) {
	fs.String(configFlag, "", "configuration file (YAML, JSON or TOML)")
	for _, s := range settings {
		switch v := s.value.(type) {
		case string:
			fs.String(s.flag, v, s.usage)
		case bool:
			fs.Bool(s.flag, v, s.usage)
		case int:
			fs.Int(s.flag, v, s.usage)
		case time.Duration:
			fs.Duration(s.flag, v, s.usage)
		case []string:
			fs.StringSlice(s.flag, v, s.usage)
		case map[string]string:
			fs.StringToString(s.flag, v, s.usage)
		default:
			panic(fmt.Sprintf("config: setting %s has a default of type %T", s.key, v))
		}
	}
}

// Reference is the table of all keys in Markdown, for docs/configuration.md.
func Reference() string {
	var b strings.Builder
	b.WriteString("| key | flag | environment | default | meaning |\n| --- | --- | --- | --- | --- |\n")
	for _, s := range settings {
		def := ""
		switch v := s.value.(type) {
		case []string:
			def = strings.Join(v, ",")
		case map[string]string:
		default:
			def = fmt.Sprint(v)
		}
		if def != "" {
			def = "`" + def + "`"
		}
		fmt.Fprintf(&b, "| `%s` | `--%s` | `%s` | %s | %s |\n", s.key, s.flag, s.env(), def, s.usage)
	}
	return b.String()
}
