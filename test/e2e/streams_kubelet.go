package e2e

import (
	"crypto/x509"
	"crypto/x509/pkix"
	"net"
	"testing"

	"xds-server/test/lab"
	"xds-server/test/streamer"
)

// The pods of the stand-in kubelets. They differ in who takes a client's websocket.
const (
	StreamNamespace = "streams"
	// TranslatedPod's node takes SPDY only, so kube-apiservers translate websockets.
	TranslatedPod = "translated"
	// PassedOnPod's node takes websockets as they come.
	PassedOnPod = "passed-on"
)

// StandInKubelet runs a stand-in kubelet that is two nodes of the lab's cluster, each with one pod. They are
// registered through a control-plane node's server. It takes no caller without a certificate of the cluster's CA.
func StandInKubelet(t testing.TB, l *lab.Lab, through *lab.Node) *streamer.Server {
	t.Helper()
	serving, err := l.PKI.CA.Issue(&x509.Certificate{
		Subject:     pkix.Name{CommonName: "system:node:stand-in", Organization: []string{"system:nodes"}},
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	})
	if err != nil {
		t.Fatal(err)
	}
	callers := x509.NewCertPool()
	callers.AddCert(l.PKI.CA.Cert)
	s, err := streamer.Start(streamer.Options{Certificate: *serving.TLS(), ClientCAs: callers})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	config := RESTConfig(l, through.DirectURL(), l.Admin())
	for _, node := range []streamer.Node{
		{Name: "stand-in-" + TranslatedPod, Pods: []string{TranslatedPod}},
		{Name: "stand-in-" + PassedOnPod, Pods: []string{PassedOnPod}, Websockets: true},
	} {
		if err := s.Register(t.Context(), config, StreamNamespace, node); err != nil {
			t.Fatal(err)
		}
	}
	return s
}
