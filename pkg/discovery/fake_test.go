package discovery

import (
	"crypto/sha512"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	"go.uber.org/zap/zaptest"
	apidiscoveryv2 "k8s.io/api/apidiscovery/v2"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"xds-server/pkg/config/certtest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	typeV2      = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"
	typeV2beta1 = "application/json;g=apidiscovery.k8s.io;v=v2beta1;as=APIGroupDiscoveryList"
)

// groups makes groups out of words: "apps/v1/deployments", "apps/v1/deployments/status", "/v1/pods".
func groups(words ...string) []apidiscoveryv2.APIGroupDiscovery {
	var out []apidiscoveryv2.APIGroupDiscovery
	for _, w := range words {
		p := strings.SplitN(w, "/", 4)
		if len(out) == 0 || out[len(out)-1].Name != p[0] {
			out = append(out, apidiscoveryv2.APIGroupDiscovery{})
			out[len(out)-1].Name = p[0]
		}
		g := &out[len(out)-1]
		if n := len(g.Versions); n == 0 || g.Versions[n-1].Version != p[1] {
			g.Versions = append(g.Versions, apidiscoveryv2.APIVersionDiscovery{Version: p[1], Freshness: apidiscoveryv2.DiscoveryFreshnessCurrent})
		}
		v := &g.Versions[len(g.Versions)-1]
		if n := len(v.Resources); n == 0 || v.Resources[n-1].Resource != p[2] {
			v.Resources = append(v.Resources, apidiscoveryv2.APIResourceDiscovery{Resource: p[2], Scope: apidiscoveryv2.ScopeNamespace, Verbs: []string{"get"}})
		}
		if len(p) == 4 {
			r := &v.Resources[len(v.Resources)-1]
			r.Subresources = append(r.Subresources, apidiscoveryv2.APISubresourceDiscovery{Subresource: p[3], Verbs: []string{"get"}})
		}
	}
	return out
}

// words is the reverse of groups.
func words(list []apidiscoveryv2.APIGroupDiscovery) string {
	var out []string
	for _, g := range list {
		for _, v := range g.Versions {
			for _, r := range v.Resources {
				w := g.Name + "/" + v.Version + "/" + r.Resource
				out = append(out, w)
				for _, s := range r.Subresources {
					out = append(out, w+"/"+s.Subresource)
				}
			}
		}
	}
	return strings.Join(out, " ")
}

// render is a document of groups.
func render(list []apidiscoveryv2.APIGroupDiscovery) []byte {
	if list == nil {
		list = []apidiscoveryv2.APIGroupDiscovery{}
	}
	doc := apidiscoveryv2.APIGroupDiscoveryList{Items: list}
	doc.Kind, doc.APIVersion = "APIGroupDiscoveryList", "apidiscovery.k8s.io/v2"
	b, err := json.Marshal(doc)
	if err != nil {
		panic(err)
	}
	return b
}

// apiserver is a fake one: what it answers can be changed at any time.
type apiserver struct {
	*httptest.Server
	ca          *certtest.CA
	credentials *Credentials
	dir         string

	mu       sync.Mutex
	handlers map[string]http.HandlerFunc
	requests []*http.Request
}

func newAPIServer(t *testing.T, changes ...certtest.Change) *apiserver {
	t.Helper()
	ca := certtest.NewCA(t, "kubernetes")
	if changes == nil {
		changes = []certtest.Change{certtest.DNS("kubernetes.default.svc")}
	}
	s := &apiserver{ca: ca, dir: t.TempDir(), handlers: map[string]http.HandlerFunc{}}
	s.Server = httptest.NewUnstartedServer(http.HandlerFunc(s.serve))
	s.TLS = &tls.Config{Certificates: []tls.Certificate{ca.TLS("kube-apiserver", changes...)}, ClientAuth: tls.VerifyClientCertIfGiven, ClientCAs: ca.Pool()}
	s.EnableHTTP2 = true
	s.StartTLS()
	t.Cleanup(s.Close)
	s.writeFiles(t, ca, "xds-server")
	var err error
	s.credentials, err = NewCredentials(s.file("ca.crt"), s.file("tls.crt"), s.file("tls.key"), zaptest.NewLogger(t))
	if err != nil {
		t.Fatal(err)
	}
	s.on("/readyz", text(200, "ok"))
	s.serveView("/v1/pods", "apps/v1/deployments", "apps/v1/deployments/status")
	return s
}

func (s *apiserver) file(name string) string { return filepath.Join(s.dir, name) }

// writeFiles overwrites the client's files in place, as kubeadm does, with another time of change.
func (s *apiserver) writeFiles(t *testing.T, ca *certtest.CA, commonName string) {
	t.Helper()
	cert, key := ca.Issue(commonName)
	for name, data := range map[string][]byte{"ca.crt": ca.PEM(), "tls.crt": cert, "tls.key": key} {
		certtest.Write(t, s.dir, name, data)
		touch(t, s.file(name))
	}
}

// touch moves a file's time of change, which two writes within a tick of the clock could have in common.
func touch(t *testing.T, path string) {
	t.Helper()
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	later := info.ModTime().Add(time.Duration(len(path)) * time.Second)
	if err := os.Chtimes(path, later, later); err != nil {
		t.Fatal(err)
	}
}

func (s *apiserver) serve(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	h := s.handlers[r.URL.Path]
	s.requests = append(s.requests, r)
	s.mu.Unlock()
	if h == nil {
		http.NotFound(w, r)
		return
	}
	h(w, r)
}

func (s *apiserver) on(path string, h http.HandlerFunc) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.handlers[path] = h
}

// serveView serves documents with ETags, as kube-apiserver does.
func (s *apiserver) serveView(w ...string) {
	var core, rest []string
	for _, word := range w {
		if strings.HasPrefix(word, "/") {
			core = append(core, word)
		} else {
			rest = append(rest, word)
		}
	}
	s.on("/api", withETag(typeV2, render(groups(core...))))
	s.on("/apis", withETag(typeV2, render(groups(rest...))))
}

// seen are the requests since the last call, as "path SNI client".
func (s *apiserver) seen() []*http.Request {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := s.requests
	s.requests = nil
	return out
}

func paths(list []*http.Request) string {
	var out []string
	for _, r := range list {
		out = append(out, r.URL.Path)
	}
	return strings.Join(out, " ")
}

func (s *apiserver) client(t *testing.T) *client {
	c := newClient(s.Listener.Addr().String(), 10*time.Second, s.credentials)
	t.Cleanup(c.disconnect)
	return c
}

func text(status int, body string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(status)
		_, _ = w.Write([]byte(body))
	}
}

func typed(contentType string, body []byte) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", contentType)
		_, _ = w.Write(body)
	}
}

func withETag(contentType string, body []byte) http.HandlerFunc {
	etag := `"` + hash(body) + `"`
	return func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("ETag", etag)
		if r.Header.Get("If-None-Match") == etag {
			w.WriteHeader(http.StatusNotModified)
			return
		}
		typed(contentType, body)(w, r)
	}
}

func hash(b []byte) string { return fmt.Sprintf("%X", sha512.Sum512(b)) }

func gvk(group, version, kind string) *metav1.GroupVersionKind {
	return &metav1.GroupVersionKind{Group: group, Version: version, Kind: kind}
}
