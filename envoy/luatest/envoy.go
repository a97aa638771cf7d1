// Package luatest runs the real Envoy with the real Lua scripts between a test and a server that tells what arrived, and
// makes certificates that no well-behaved authority would sign.
package luatest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"text/template"
	"time"

	"xds-server/test/lab"
)

// Config is one Envoy listener with one script.
type Config struct {
	// Script is the Lua source of the filter.
	Script string
	// CAFile, with CertFile and KeyFile, makes the listener speak TLS and ask for a client certificate.
	CAFile, CertFile, KeyFile string
	// KeepClientHeaders leaves the stripping out: to show what it is good for.
	KeepClientHeaders bool
	// Upstream answers instead of the echo server.
	Upstream http.Handler
	// HTTP2 speaks HTTP/2 to the server behind Envoy.
	HTTP2 bool
}

// Envoy is a running one. All its addresses are unix sockets, so that tests need no ports.
type Envoy struct {
	Socket string
	admin  string
	log    string
}

// Echo is what the server behind Envoy saw.
type Echo struct {
	Path    string
	Headers http.Header
}

// Binary is the Envoy under test: the lab's own.
func Binary(tb testing.TB) string {
	tb.Helper()
	if err := lab.Parts(tb.Context(), os.Stderr, lab.Envoy); err != nil {
		tb.Fatal(err)
	}
	return lab.Envoy.Path()
}

// Start runs Envoy until the test ends.
func Start(tb testing.TB, c Config) *Envoy {
	tb.Helper()
	binary := Binary(tb)
	// Not TempDir of the test: its name may be too long for a socket.
	dir, err := os.MkdirTemp("", "luatest")
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = os.RemoveAll(dir) })
	e := &Envoy{Socket: filepath.Join(dir, "front"), admin: filepath.Join(dir, "admin"), log: filepath.Join(dir, "log")}
	upstream := filepath.Join(dir, "up")
	serve(tb, upstream, c.Upstream)

	config := filepath.Join(dir, "envoy.yaml")
	f, err := os.Create(config)
	if err != nil {
		tb.Fatal(err)
	}
	if err := bootstrap.Execute(f, struct {
		Config
		*Envoy
		Admin, Upstream string
	}{c, e, e.admin, upstream}); err != nil {
		tb.Fatal(err)
	}
	if err := f.Close(); err != nil {
		tb.Fatal(err)
	}
	e.run(tb, binary, config)
	return e
}

func serve(tb testing.TB, socket string, h http.Handler) {
	tb.Helper()
	if h == nil {
		h = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			_ = json.NewEncoder(w).Encode(Echo{Path: r.RequestURI, Headers: r.Header})
		})
	}
	l, err := net.Listen("unix", socket)
	if err != nil {
		tb.Fatal(err)
	}
	s := &http.Server{Handler: h, ReadHeaderTimeout: time.Minute, Protocols: new(http.Protocols)}
	s.Protocols.SetHTTP1(true)
	s.Protocols.SetUnencryptedHTTP2(true)
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := s.Serve(l); !errors.Is(err, http.ErrServerClosed) {
			tb.Errorf("serving the upstream: %v", err)
		}
	}()
	tb.Cleanup(func() { _ = s.Close(); <-done })
}

func (e *Envoy) run(tb testing.TB, binary, config string) {
	tb.Helper()
	cmd := exec.Command(binary, "-c", config, "--disable-hot-restart", "--concurrency", "2", "--log-level", "error", "--log-path", e.log)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL} // a fuzzer kills its workers
	if err := cmd.Start(); err != nil {
		tb.Fatal(err)
	}
	exited := make(chan error, 1)
	go func() { exited <- cmd.Wait() }()
	tb.Cleanup(func() {
		_ = cmd.Process.Kill()
		<-exited
	})
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	admin := e.client(e.admin)
	defer admin.CloseIdleConnections()
	for tick := time.NewTicker(10 * time.Millisecond); ; {
		req, _ := http.NewRequestWithContext(ctx, http.MethodGet, "http://admin/ready", nil)
		if res, err := admin.Do(req); err == nil {
			_ = res.Body.Close()
			if res.StatusCode == http.StatusOK {
				tick.Stop()
				return
			}
		}
		select {
		case err := <-exited:
			exited <- err
			tb.Fatalf("envoy ended: %v\n%s", err, e.Log())
		case <-ctx.Done():
			tb.Fatalf("envoy is not ready\n%s", e.Log())
		case <-tick.C:
		}
	}
}

// Log is what Envoy has written, a script's errors among it.
func (e *Envoy) Log() string {
	b, err := os.ReadFile(e.log)
	if err != nil {
		return fmt.Sprintf("(no log: %v)", err)
	}
	return string(b)
}

func (e *Envoy) client(socket string) *http.Client {
	return &http.Client{Transport: &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", socket)
		},
	}}
}

// Client speaks plain HTTP to the listener.
func (e *Envoy) Client() *http.Client { return e.client(e.Socket) }

// The parts of the front that matter here, as the bootstrap has them.
var bootstrap = template.Must(template.New("").Funcs(template.FuncMap{
	"json": func(v any) (string, error) { b, err := json.Marshal(v); return string(b), err },
}).Parse(`
admin: {address: {pipe: {path: {{ json .Admin }}}}}
static_resources:
  listeners:
  - name: front
    address: {pipe: {path: {{ json .Socket }}}}
    filter_chains:
    - filters:
      - name: envoy.filters.network.http_connection_manager
        typed_config:
          "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
          stat_prefix: front
          codec_type: AUTO
          generate_request_id: false
          normalize_path: false
          merge_slashes: false
          path_with_escaped_slashes_action: KEEP_UNCHANGED
          max_request_headers_kb: 1024
          upgrade_configs: [{upgrade_type: websocket}, {upgrade_type: spdy/3.1}]
          common_http_protocol_options: {max_headers_count: 1000}
{{- if not .KeepClientHeaders }}
          early_header_mutation_extensions:
          - name: strip
            typed_config:
              "@type": type.googleapis.com/envoy.extensions.http.early_header_mutation.header_mutation.v3.HeaderMutation
              mutations:
              - {remove_on_match: {key_matcher: {prefix: x-remote-, ignore_case: true}}}
              - {remove_on_match: {key_matcher: {exact: x-gvr, ignore_case: true}}}
              - {remove_on_match: {key_matcher: {exact: x-subresource, ignore_case: true}}}
              - {remove_on_match: {key_matcher: {exact: x-id-state, ignore_case: true}}}
              - {remove_on_match: {key_matcher: {exact: x-kubernetes-peer-proxied, ignore_case: true}}}
{{- end }}
          http_filters:
{{- if .Script }}
          - name: identity
            typed_config:
              "@type": type.googleapis.com/envoy.extensions.filters.http.lua.v3.Lua
              default_source_code: {inline_string: {{ json .Script }}}
{{- end }}
          - name: envoy.filters.http.router
            typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router, suppress_envoy_headers: true}
          route_config:
            virtual_hosts:
            - name: all
              domains: ["*"]
              routes:
{{- if .Script }}
              - match: {prefix: /, headers: [{name: x-id-state, present_match: false}]}
                direct_response: {status: 500, body: {inline_string: "x-id-state is missing"}}
{{- end }}
              - match: {prefix: /}
                route: {cluster: up, timeout: 0s}
{{- if .CAFile }}
      transport_socket:
        name: envoy.transport_sockets.tls
        typed_config:
          "@type": type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.DownstreamTlsContext
          require_client_certificate: false
          disable_stateless_session_resumption: true
          disable_stateful_session_resumption: true
          common_tls_context:
            alpn_protocols: [h2, http/1.1]
            tls_params: {signature_algorithms: [ecdsa_secp256r1_sha256, rsa_pss_rsae_sha256, rsa_pkcs1_sha256, ed25519, ecdsa_secp384r1_sha384, rsa_pss_rsae_sha384, rsa_pkcs1_sha384, ecdsa_secp521r1_sha512, rsa_pss_rsae_sha512, rsa_pkcs1_sha512]}
            tls_certificates: [{certificate_chain: {filename: {{ json .CertFile }}}, private_key: {filename: {{ json .KeyFile }}}}]
            validation_context: {trusted_ca: {filename: {{ json .CAFile }}}, trust_chain_verification: ACCEPT_UNTRUSTED}
{{- end }}
  clusters:
  - name: up
    connect_timeout: 1s
{{- if .HTTP2 }}
    typed_extension_protocol_options:
      envoy.extensions.upstreams.http.v3.HttpProtocolOptions:
        "@type": type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions
        explicit_http_config: {http2_protocol_options: {}}
{{- end }}
    circuit_breakers: {thresholds: [{max_connections: 100000, max_pending_requests: 100000, max_requests: 100000}]}
    load_assignment: {cluster_name: up, endpoints: [{lb_endpoints: [{endpoint: {address: {pipe: {path: {{ json .Upstream }}}}}}]}]}
`))
