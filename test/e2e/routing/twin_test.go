package routing

import (
	"bytes"
	"context"
	"crypto/sha256"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"

	apidiscoveryv2 "k8s.io/api/apidiscovery/v2"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"xds-server/test/e2e/suite"
	"xds-server/test/lab"
	"xds-server/test/plane"
)

// A twin is another address of a server, at which it claims something else: an xds-server gets the server's discovery
// with an edit, while what an Envoy sends goes to the server's peer listener byte for byte. So tables can be changed
// quickly, and be wrong, with real servers behind them.
type twin struct {
	Address string

	of       *plane.Node
	admin    *http.Client
	listener net.Listener
	readers  *connQueue

	mu   sync.Mutex
	edit func(*claims)
	// documents are by path, since the last edit.
	documents map[string]*lab.Answer
}

// claims are what a server says that it serves.
type claims struct {
	groups []apidiscoveryv2.APIGroupDiscovery
}

// add claims a namespaced resource.
func (c *claims) add(group, version, resource string) {
	kind := &metav1.GroupVersionKind{Group: group, Version: version, Kind: "Claimed"}
	c.groups = append(c.groups, apidiscoveryv2.APIGroupDiscovery{
		ObjectMeta: metav1.ObjectMeta{Name: group},
		Versions: []apidiscoveryv2.APIVersionDiscovery{{
			Version: version, Freshness: apidiscoveryv2.DiscoveryFreshnessCurrent,
			Resources: []apidiscoveryv2.APIResourceDiscovery{{
				Resource: resource, SingularResource: "claimed", ResponseKind: kind, Scope: apidiscoveryv2.ScopeNamespace,
				Verbs:        []string{"create", "delete", "get", "list", "patch", "update", "watch"},
				Subresources: []apidiscoveryv2.APISubresourceDiscovery{{Subresource: "status", ResponseKind: kind, Verbs: []string{"get"}}},
			}},
		}},
	})
}

// extend claims a further resource of a version that the server has.
func (c *claims) extend(group, version, resource string) {
	for i := range c.groups {
		if c.groups[i].Name != group {
			continue
		}
		for j := range c.groups[i].Versions {
			if v := &c.groups[i].Versions[j]; v.Version == version {
				r := v.Resources[0]
				r.Resource = resource
				r.Subresources = []apidiscoveryv2.APISubresourceDiscovery{{Subresource: "status", ResponseKind: r.ResponseKind, Verbs: []string{"get"}}}
				v.Resources = append(v.Resources, r)
			}
		}
	}
}

// drop no longer claims a resource.
func (c *claims) drop(group, resource string) {
	for i := range c.groups {
		if c.groups[i].Name != group {
			continue
		}
		for j := range c.groups[i].Versions {
			v := &c.groups[i].Versions[j]
			var kept []apidiscoveryv2.APIResourceDiscovery
			for _, r := range v.Resources {
				if r.Resource != resource {
					kept = append(kept, r)
				}
			}
			v.Resources = kept
		}
	}
}

// newTwin starts a twin of a server at a free address of the lab's network; it ends with the scenario.
func newTwin(s *suite.S, w world, of *plane.Node) *twin {
	s.Helper()
	l, err := net.Listen("tcp", of.IP+":0")
	if err != nil {
		s.Fatal(err)
	}
	pair, err := tls.LoadX509KeyPair(filepath.Join(of.PKI, "apiserver.crt"), filepath.Join(of.PKI, "apiserver.key"))
	if err != nil {
		s.Fatal(err)
	}
	t := &twin{
		Address: l.Addr().String(), of: of, admin: w.Client(w.Admin(), lab.HTTP1), listener: l,
		readers: &connQueue{conns: make(chan net.Conn), addr: l.Addr()}, documents: map[string]*lab.Answer{}, edit: func(*claims) {},
	}
	server := &http.Server{Handler: t}
	config := &tls.Config{Certificates: []tls.Certificate{pair}, NextProtos: []string{"http/1.1"}}
	go func() { _ = server.Serve(tls.NewListener(t.readers, config)) }()
	go t.accept()
	s.Cleanup(func() {
		_ = l.Close()
		_ = server.Close()
	})
	return t
}

// claim changes what the twin claims, from the next read on.
func (t *twin) claim(edit func(*claims)) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.edit, t.documents = edit, map[string]*lab.Answer{}
}

// accept hands every connection to whom it is for, by the name that it asks for.
func (t *twin) accept() {
	for {
		c, err := t.listener.Accept()
		if err != nil {
			close(t.readers.conns)
			return
		}
		go func() {
			name, replay, err := serverNameOf(c)
			switch {
			case err != nil:
				_ = c.Close()
			case name == "xds-server.kubernetes.default.svc":
				t.readers.conns <- replay
			default:
				passOn(replay, t.of.Peer)
			}
		}()
	}
}

// ServeHTTP answers an xds-server as the server itself does, but for the edit.
func (t *twin) ServeHTTP(rw http.ResponseWriter, r *http.Request) {
	a, err := t.document(r)
	if err != nil {
		rw.WriteHeader(http.StatusBadGateway)
		return
	}
	etag := fmt.Sprintf(`"%X"`, sha256.Sum256(a.Body))
	rw.Header().Set("Content-Type", a.Header.Get("Content-Type"))
	rw.Header().Set("ETag", etag)
	if r.Header.Get("If-None-Match") == etag {
		rw.WriteHeader(http.StatusNotModified)
		return
	}
	rw.WriteHeader(a.Status)
	_, _ = rw.Write(a.Body)
}

func (t *twin) document(r *http.Request) (*lab.Answer, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	path := r.URL.Path
	aggregated := (path == "/api" || path == "/apis") && strings.Contains(r.Header.Get("Accept"), "APIGroupDiscoveryList")
	if a := t.documents[path]; aggregated && a != nil {
		return a, nil
	}
	a, err := lab.Call(r.Context(), t.admin, r.Method, t.of.DirectURL()+path, "", http.Header{"Accept": r.Header["Accept"]})
	if err != nil || !aggregated || a.Status != http.StatusOK {
		return a, err
	}
	var list apidiscoveryv2.APIGroupDiscoveryList
	if err := json.Unmarshal(a.Body, &list); err != nil {
		return nil, err
	}
	c := &claims{list.Items}
	t.edit(c)
	list.Items = nil
	for _, g := range c.groups {
		if (g.Name == "") == (path == "/api") {
			list.Items = append(list.Items, g)
		}
	}
	if a.Body, err = json.Marshal(list); err == nil {
		t.documents[path] = a
	}
	return a, err
}

// rewriteConfig changes a node's configuration file for as long as the scenario runs. The xds-server reads it when it
// is started the next time.
func rewriteConfig(s *suite.S, n *plane.Node, edit func(map[string]any)) {
	s.Helper()
	original, err := os.ReadFile(n.Config)
	if err != nil {
		s.Fatal(err)
	}
	var config map[string]any
	if err := yaml.Unmarshal(original, &config); err != nil {
		s.Fatal(err)
	}
	edit(config)
	changed, err := yaml.Marshal(config)
	if err == nil {
		err = os.WriteFile(n.Config, changed, 0o644)
	}
	if err != nil {
		s.Fatal(err)
	}
	s.Cleanup(func() {
		if err := os.WriteFile(n.Config, original, 0o644); err != nil {
			s.Error(err)
		}
	})
}

// serverNameOf reads a ClientHello and gives the connection as if nothing had been read of it.
func serverNameOf(c net.Conn) (string, net.Conn, error) {
	var seen bytes.Buffer
	name, found := "", errors.New("seen")
	err := tls.Server(deaf{c, io.TeeReader(c, &seen)}, &tls.Config{
		GetConfigForClient: func(h *tls.ClientHelloInfo) (*tls.Config, error) {
			name = h.ServerName
			return nil, found
		},
	}).HandshakeContext(context.Background())
	if !errors.Is(err, found) {
		return "", nil, err
	}
	return name, replayed{c, io.MultiReader(&seen, c)}, nil
}

// deaf is a connection to which nothing is written.
type deaf struct {
	net.Conn
	r io.Reader
}

func (d deaf) Read(b []byte) (int, error)  { return d.r.Read(b) }
func (d deaf) Write(b []byte) (int, error) { return len(b), nil }

type replayed struct {
	net.Conn
	r io.Reader
}

func (r replayed) Read(b []byte) (int, error) { return r.r.Read(b) }

// passOn copies a connection to an address and back, until either side ends it.
func passOn(c net.Conn, address string) {
	defer c.Close()
	to, err := net.Dial("tcp", address)
	if err != nil {
		return
	}
	defer to.Close()
	ended := make(chan struct{}, 2)
	copyTo := func(dst io.Writer, src io.Reader) {
		_, _ = io.Copy(dst, src)
		ended <- struct{}{}
	}
	go copyTo(to, c)
	go copyTo(c, to)
	<-ended
}

// connQueue is a listener of connections that were accepted elsewhere.
type connQueue struct {
	conns chan net.Conn
	addr  net.Addr
}

func (q *connQueue) Accept() (net.Conn, error) {
	c, ok := <-q.conns
	if !ok {
		return nil, net.ErrClosed
	}
	return c, nil
}

func (q *connQueue) Close() error   { return nil }
func (q *connQueue) Addr() net.Addr { return q.addr }
