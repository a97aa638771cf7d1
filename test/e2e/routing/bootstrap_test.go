package routing

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	auditv1 "k8s.io/apiserver/pkg/apis/audit/v1"

	"xds-server/test/e2e/suite"
	"xds-server/test/lab"
	"xds-server/test/plane"
)

// The cluster's own EndpointSlice, a virtual IP and the PROXY protocol, as a set-up behind a load balancer has them.
func TestServersFromTheClusterBehindALoadBalancer(t *testing.T) {
	suite.Scenario(t, "B3+B6", "servers found in the EndpointSlice, a virtual IP, and the PROXY protocol's client address in the audit log", func(s *suite.S) {
		const vip = "10.0.200.200"
		w := alone(s, lab.Config{Nodes: []lab.NodeConfig{
			{Name: "old", Version: lab.Kube136}, {Name: "new", Version: lab.Kube137},
		}}, plane.Options{EndpointSlice: true, Bootstrap: []string{"--extra-address", vip, "--proxy-protocol"}})

		const client = "192.0.2.7"
		for i, address := range []string{w.old.Front, vip + ":6443"} {
			agent := fmt.Sprintf("balancer-%d", i)
			ctx, cancel := context.WithTimeout(s.Ctx, 30*time.Second)
			defer cancel()
			if err := plane.Eventually(ctx, "a peer-only API is answered through "+address, func() error {
				answer, err := overProxyProtocol(ctx, address, client, w.TLS(w.Token("alice")), w.Token("alice").Token, agent)
				s.Count(1)
				if err == nil && answer != http.StatusOK {
					err = fmt.Errorf("it is answered %d", answer)
				}
				return err
			}); err != nil {
				s.Fatal(err)
			}
			event, err := w.updated.WaitAudit(ctx, func(e *auditv1.Event) bool { return e.UserAgent == agent })
			if err != nil {
				s.Fatal(err)
			}
			if !slices.Contains(event.SourceIPs, client) {
				s.Errorf("through %s the audit log has the client at %v, want %s among them", address, event.SourceIPs, client)
			}
		}
	})
}

// overProxyProtocol asks for the migrations as a balancer would that speaks for a client.
func overProxyProtocol(ctx context.Context, address, client string, config *tls.Config, token, agent string) (int, error) {
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", address)
	if err != nil {
		return 0, err
	}
	defer conn.Close()
	host, port, _ := net.SplitHostPort(address)
	if _, err := fmt.Fprintf(conn, "PROXY TCP4 %s %s 4711 %s\r\n", client, host, port); err != nil {
		return 0, err
	}
	config = config.Clone()
	config.ServerName = "kubernetes.default.svc"
	secure := tls.Client(conn, config)
	if _, err := fmt.Fprintf(secure, "GET %s HTTP/1.1\r\nHost: kubernetes\r\nAuthorization: Bearer %s\r\nUser-Agent: %s\r\nConnection: close\r\n\r\n", migrations, token, agent); err != nil {
		return 0, err
	}
	r, err := http.ReadResponse(bufio.NewReader(secure), nil)
	if err != nil {
		return 0, err
	}
	defer r.Body.Close()
	_, err = io.Copy(io.Discard, r.Body)
	return r.StatusCode, err
}

// kubeadm renews certificates by overwriting the files.
func TestRenewedCertificatesAreTakenUpInPlace(t *testing.T) {
	suite.Scenario(t, "B6-renew", "certificates overwritten in place are taken up by Envoy, and no request fails", func(s *suite.S) {
		w := upgrade(s)
		load := startLoad(s, w)
		for _, name := range []string{"apiserver", "front-proxy-client"} {
			renew(s, w, name)
		}
		before := serial(s, w.old.Front)
		renew(s, w, "apiserver")
		ctx, cancel := context.WithTimeout(s.Ctx, 20*time.Second)
		defer cancel()
		if err := plane.Eventually(ctx, "the front presents the renewed certificate", func() error {
			if serial(s, w.old.Front) == before {
				return errors.New("it still presents the old one")
			}
			return nil
		}); err != nil {
			s.Error(err)
		}
		if failures := load.stop(); len(failures) > 0 {
			s.Errorf("%d requests failed, the first: %s", len(failures), failures[0])
		}
	})
}

// renew overwrites one of the old node's certificates with a new one of the same authority, content only.
func renew(s *suite.S, w world, name string) {
	s.Helper()
	fresh, err := os.MkdirTemp(w.old.Dir, "renewed-")
	if err != nil {
		s.Fatal(err)
	}
	host, _, _ := net.SplitHostPort(w.old.Direct)
	if err := w.PKI.WriteNode(fresh, "old", net.ParseIP(w.old.IP), net.ParseIP(host)); err != nil {
		s.Fatal(err)
	}
	for _, ending := range []string{".key", ".crt"} {
		b, err := os.ReadFile(filepath.Join(fresh, name+ending))
		if err != nil {
			s.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(w.old.PKI, name+ending), b, 0o600); err != nil {
			s.Fatal(err)
		}
	}
}

// serial is the serial number of the certificate that an address presents.
func serial(s *suite.S, address string) string {
	s.Helper()
	conn, err := tls.Dial("tcp", address, &tls.Config{InsecureSkipVerify: true}) // looked at, not trusted
	if err != nil {
		s.Fatalf("looking at the certificate of %s: %v", address, err)
	}
	defer conn.Close()
	return conn.ConnectionState().PeerCertificates[0].SerialNumber.String()
}

// load is a steady stream of requests, local and peer-only, each on a new connection now and then.
type load struct {
	cancel   context.CancelFunc
	done     chan struct{}
	failures []string
}

// startLoad asks the old server's front for a local and a peer-only API by turns, with a token and with a certificate,
// until stop.
func startLoad(s *suite.S, w world) *load {
	s.Helper()
	carol, err := w.NewClientCertificate("carol", "lab:admins")
	if err != nil {
		s.Fatal(err)
	}
	ctx, cancel := context.WithCancel(s.Ctx)
	l := &load{cancel: cancel, done: make(chan struct{})}
	go func() {
		defer close(l.done)
		clients := []*http.Client{s.Client(w.Lab, w.Token("alice"), lab.HTTP2), s.Client(w.Lab, carol, lab.HTTP2), s.Client(w.Lab, carol, lab.HTTP1)}
		for i := 0; ctx.Err() == nil; i++ {
			url := w.old.FrontURL() + []string{"/api/v1/namespaces/default", migrations}[i%2]
			client := clients[i%len(clients)]
			answer, err := lab.Call(ctx, client, "GET", url, "", nil)
			switch {
			case ctx.Err() != nil:
			case err != nil:
				l.failures = append(l.failures, err.Error())
			case answer.Status != http.StatusOK:
				l.failures = append(l.failures, fmt.Sprintf("%s answered %d: %.200s", url, answer.Status, answer.Body))
			}
			if i%20 == 19 {
				client.CloseIdleConnections()
			}
		}
	}()
	return l
}

// stop ends the load and tells what failed.
func (l *load) stop() []string {
	l.cancel()
	<-l.done
	return l.failures
}
