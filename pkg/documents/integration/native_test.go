// Package integration compares the documents with those of real kube-apiservers.
package integration

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest"
	apidiscoveryv2 "k8s.io/api/apidiscovery/v2"

	"xds-server/pkg/discovery"
	"xds-server/pkg/documents"
	"xds-server/pkg/peers"
	"xds-server/test/lab"
)

func TestMain(m *testing.M) {
	lab.Main(m, lab.Etcd, lab.KubeAPIServer(lab.Kube136), lab.KubeAPIServer(lab.Kube137))
}

const discoveryList = ";g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"

// read returns what is known of a server once its documents are of one moment: right after a start, they follow each other.
func read(t *testing.T, n *lab.Node) discovery.Observation {
	log := zaptest.NewLogger(t, zaptest.Level(zap.InfoLevel))
	credentials, err := discovery.NewCredentials(filepath.Join(n.PKI, "ca.crt"), filepath.Join(n.PKI, "xds-server.crt"),
		filepath.Join(n.PKI, "xds-server.key"), log)
	if err != nil {
		t.Fatal(err)
	}
	p := discovery.NewPoller(discovery.Options{
		Source: peers.Static{{Name: n.Name, Address: n.Direct, Direct: true}}, Credentials: credentials,
		Interval: 500 * time.Millisecond, Timeout: 5 * time.Second, Hold: time.Hour, Log: log, Registerer: prometheus.NewRegistry(),
	})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- p.Run(ctx) }()
	defer func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}()
	for end := time.Now().Add(30 * time.Second); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		s := p.Snapshot()
		if len(s) == 1 && s[0].View != nil && s[0].Documents != nil && !documents.Compile(s, true).Differ() {
			return s[0]
		}
	}
	t.Fatalf("%s was not read: %+v", n.Name, p.Snapshot())
	return discovery.Observation{}
}

// What is rendered of one server alone is what it serves: status, headers and body, to the byte. Nothing of it differs,
// so that a healthy server's documents never pass through here.
func TestOneServersDocumentsAreItsOwn(t *testing.T) {
	for _, version := range []string{lab.Kube136, lab.Kube137} {
		t.Run(version, func(t *testing.T) {
			// Each by itself: servers share APIServices, and delete each other's.
			l := lab.ForTest(t, lab.Config{Nodes: []lab.NodeConfig{{Name: "only", Version: version}}})
			n := l.Node("only")
			o := read(t, n)
			s := documents.Compile([]discovery.Observation{o}, true)
			if s.Differ() {
				t.Error("it differs from itself")
			}
			paths := []string{"/api", "/api/", "/api/v1", "/api/v1/", "/apis", "/apis/"}
			for _, g := range o.View.Groups {
				for _, v := range g.Versions {
					if g.Name != "" && v.Freshness == apidiscoveryv2.DiscoveryFreshnessCurrent {
						paths = append(paths, "/apis/"+g.Name, "/apis/"+g.Name+"/"+v.Version)
					}
				}
			}
			client := l.Client(l.Admin(), lab.HTTP1)
			for _, path := range paths {
				h, verdict := s.Find(path)
				if verdict != documents.Merged {
					t.Errorf("%s: %v", path, verdict)
					continue
				}
				for _, accept := range []string{
					"application/json", "application/yaml", "application/vnd.kubernetes.protobuf", "*/*",
					"application/json" + discoveryList, "application/yaml" + discoveryList,
					"application/vnd.kubernetes.protobuf" + discoveryList + ",application/json",
					"application/json" + discoveryList + ";pretty=1", "text/plain",
				} {
					header := http.Header{"Accept": {accept}, "User-Agent": {"test"}}
					want, err := lab.Call(t.Context(), client, http.MethodGet, n.DirectURL()+path, "", header)
					if err != nil {
						t.Fatal(err)
					}
					req := httptest.NewRequest(http.MethodGet, path, nil)
					req.Header = header
					got := httptest.NewRecorder()
					h.ServeHTTP(got, req)
					compare(t, fmt.Sprintf("%s as %s", path, accept), want, got)
				}
			}
		})
	}
}

func compare(t *testing.T, what string, want *lab.Answer, got *httptest.ResponseRecorder) {
	t.Helper()
	if want.Status != got.Code {
		t.Errorf("%s: %d, want %d: %.200s", what, got.Code, want.Status, want.Body)
		return
	}
	for _, name := range []string{"Content-Type", "Vary", "Cache-Control"} {
		if fmt.Sprint(want.Header.Values(name)) != fmt.Sprint(got.Header().Values(name)) {
			t.Errorf("%s: %s is %q, want %q", what, name, got.Header().Values(name), want.Header.Values(name))
		}
	}
	// go-restful, which stands before some documents, refuses in words of its own.
	if got.Code == http.StatusOK && string(want.Body) != got.Body.String() {
		t.Errorf("%s: another body:\n%.300q\n%.300q", what, got.Body, want.Body)
	}
}
