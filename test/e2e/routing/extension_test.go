package routing

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"xds-server/test/e2e/suite"
	"xds-server/test/lab"
	"xds-server/test/plane"
)

const (
	extensionGroup = "extension.example.com"
	extensionGV    = "/apis/" + extensionGroup + "/v1"
	echoes         = extensionGV + "/echoes"
	extensionAPI   = "/apis/apiregistration.k8s.io/v1/apiservices"
)

// extension is a small extension apiserver: its answer to a request for an echo is what it got, and from which
// kube-apiserver.
type extension struct {
	address string
	nodes   map[string]string // by certificate: whose kube-apiserver shows it

	mu      sync.Mutex
	asked   map[string]int        // requests for echoes, by URI
	refused map[string]bool       // nodes that can't reach it
	conns   map[net.Conn]struct{} // with a request on them
}

// echo is an answer of the extension apiserver.
type echo struct {
	By     string // the node whose kube-apiserver sent it
	Method string
	URI    string
	Header http.Header
}

// startExtension starts one, for as long as t runs, and registers it with the cluster as an aggregated API.
func startExtension(t *testing.T, s *suite.S, w world) *extension {
	s.Helper()
	x := &extension{asked: map[string]int{}, nodes: map[string]string{}, refused: map[string]bool{}, conns: map[net.Conn]struct{}{}}
	for _, n := range w.Plane.Nodes {
		b, err := os.ReadFile(filepath.Join(n.PKI, "front-proxy-client.crt"))
		if err != nil {
			s.Fatal(err)
		}
		block, _ := pem.Decode(b)
		x.nodes[string(block.Bytes)] = n.Name
	}
	pair, err := w.PKI.CA.Issue(&x509.Certificate{DNSNames: []string{"extension.default.svc"}})
	if err != nil {
		s.Fatal(err)
	}
	clients := x509.NewCertPool()
	clients.AddCert(w.PKI.FrontProxyCA.Cert)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		s.Fatal(err)
	}
	x.address = listener.Addr().String()
	server := &http.Server{
		Handler: x, ErrorLog: log.New(io.Discard, "", 0), ConnState: x.connState,
		TLSConfig: &tls.Config{
			Certificates: []tls.Certificate{*pair.TLS()}, ClientCAs: clients, ClientAuth: tls.RequireAndVerifyClientCert,
			VerifyConnection: x.admit,
		},
	}
	go server.ServeTLS(listener, "", "") //nolint:errcheck // ends with Close
	t.Cleanup(func() { server.Close() }) //nolint:errcheck // the test is over
	x.register(s, w)
	return x
}

// register makes it an aggregated API, by a name that leads straight to its address.
func (x *extension) register(s *suite.S, w world) {
	s.Helper()
	host, port, _ := net.SplitHostPort(x.address)
	client := s.Client(w.Lab, w.Admin(), lab.HTTP1)
	s.Want(client, "POST", w.old.FrontURL()+"/api/v1/namespaces/default/services",
		`{"apiVersion":"v1","kind":"Service","metadata":{"name":"extension"},"spec":{"type":"ExternalName","externalName":"`+host+`"}}`, 201, "")
	ca := mustJSON(s, w.PKI.CA.CertPEM())
	s.Want(client, "POST", w.old.FrontURL()+extensionAPI, fmt.Sprintf(
		`{"apiVersion":"apiregistration.k8s.io/v1","kind":"APIService","metadata":{"name":"v1.%s"},"spec":{"group":%q,"version":"v1",`+
			`"service":{"namespace":"default","name":"extension","port":%s},"caBundle":%s,"groupPriorityMinimum":100,"versionPriority":100}}`,
		extensionGroup, extensionGroup, port, ca), 201, "")
}

// admit ends the handshake of a kube-apiserver that is not to reach it.
func (x *extension) admit(c tls.ConnectionState) error {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.refused[x.nodes[string(c.PeerCertificates[0].Raw)]] {
		return errors.New("this kube-apiserver is cut off")
	}
	return nil
}

// cutOff makes it unreachable for one node's kube-apiserver, or reachable again.
func (x *extension) cutOff(node *plane.Node, off bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.refused[node.Name] = off
	for c := range x.conns {
		if x.refused[x.nodes[string(c.(*tls.Conn).ConnectionState().PeerCertificates[0].Raw)]] {
			c.Close() //nolint:errcheck // it is cut off
		}
	}
}

func (x *extension) connState(c net.Conn, state http.ConnState) {
	x.mu.Lock()
	defer x.mu.Unlock()
	switch state {
	case http.StateActive:
		x.conns[c] = struct{}{}
	case http.StateClosed, http.StateHijacked:
		delete(x.conns, c)
	}
}

func (x *extension) ServeHTTP(rw http.ResponseWriter, r *http.Request) {
	by := x.nodes[string(r.TLS.PeerCertificates[0].Raw)]
	var answer any
	switch {
	case r.URL.Path == extensionGV:
		answer = metav1.APIResourceList{
			TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "APIResourceList"}, GroupVersion: extensionGroup + "/v1",
			APIResources: []metav1.APIResource{{Name: "echoes", SingularName: "echo", Kind: "Echo", Verbs: metav1.Verbs{"get", "create"}}},
		}
	case strings.HasPrefix(r.URL.Path, echoes):
		answer = echo{By: by, Method: r.Method, URI: r.RequestURI, Header: r.Header}
		x.mu.Lock()
		x.asked[r.RequestURI]++
		x.mu.Unlock()
		for _, h := range r.URL.Query()["answer"] { // "Name: value"
			name, value, _ := strings.Cut(h, ": ")
			rw.Header().Add(name, value)
		}
		rw.Header().Set("Server", "extension/1.0")
		rw.Header()["X-Twice"] = []string{"once", "twice"}
	default:
		http.NotFound(rw, r)
		return
	}
	rw.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(rw).Encode(answer) // to a client that has gone away
}

// touch makes every kube-apiserver look at the extension apiserver again, which it does when the registration changes.
func (x *extension) touch(s *suite.S, w world, why string) {
	s.Helper()
	a := s.Call(s.Client(w.Lab, w.Admin(), lab.HTTP1), "PATCH", w.updated.DirectURL()+extensionAPI+"/v1."+extensionGroup,
		fmt.Sprintf(`{"metadata":{"annotations":{"why":%q}}}`, why), http.Header{"Content-Type": {"application/merge-patch+json"}})
	if a.Status != 200 {
		s.Fatalf("changing the APIService answered %d: %s", a.Status, a.Body)
	}
}
