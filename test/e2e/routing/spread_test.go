package routing

import (
	"fmt"
	"net/http"
	"os"
	"strconv"
	"strings"
	"testing"

	"xds-server/test/e2e/suite"
	"xds-server/test/lab"
	"xds-server/test/plane"
)

const bundles = "/apis/certificates.k8s.io/v1/clustertrustbundles"

func TestThreeServersOfWhichTwoAreNew(t *testing.T) {
	w := alone(t, lab.Config{Nodes: []lab.NodeConfig{
		{Name: "old", Version: lab.Kube136}, {Name: "new1", Version: lab.Kube137}, {Name: "new2", Version: lab.Kube137},
	}}, plane.Options{})
	first, second := w.Plane.Nodes["new1"], w.Plane.Nodes["new2"]

	suite.Scenario(t, "1-spread", "with two new servers, requests of one connection and of many spread over both", func(s *suite.S) {
		const requests = 40
		for _, protocol := range []lab.Protocol{lab.HTTP1, lab.HTTP2} {
			for connections, agent := range map[int]string{1: "spread over one connection", 10: "spread over ten connections"} {
				agent := fmt.Sprint(agent, " ", protocol)
				clients := make([]*http.Client, connections)
				for i := range clients {
					clients[i] = s.Client(w.Lab, w.Token("alice"), protocol)
				}
				for i := range requests {
					a := s.Call(clients[i%connections], "GET", w.old.FrontURL()+migrations, "", http.Header{"User-Agent": {agent}})
					if a.Status != 200 {
						s.Fatalf("%s answered %d: %s", migrations, a.Status, a.Body)
					}
				}
				for i, n := range auditCounts(s, agent, requests, first, second) {
					if n < requests/4 {
						s.Errorf("%s: new%d got %d of %d requests", agent, i+1, n, requests)
					}
				}
			}
		}
	})

	suite.Scenario(t, "2", "large objects are created once, by the second peer, where the first refuses the connection", func(s *suite.S) {
		frozen(s, w.old, func() {
			first.Envoy.Kill()
			createsOnce(s, w, "refused", first, second)
		})
		if n := stat(s, w.old, "cluster.peers/new1+new2/plain.upstream_cx_connect_fail"); n == 0 {
			s.Error("no connection was refused: the test shows nothing")
		}
		startAgain(s, first.Envoy)
	})

	suite.Scenario(t, "2-undelivered", "the same where the first peer's Envoy answers and its server is down; without Envoy's word for that, some requests fail", func(s *suite.S) {
		healthy(s, w.old, 2)
		frozen(s, w.old, func() {
			first.Server.Kill()
			createsOnce(s, w, "undelivered", first, second)
			if n := stat(s, first, "http.peer.downstream_rq_5xx"); n == 0 {
				s.Error("no request met the Envoy whose server is down: the test shows nothing")
			}

			bootstrap, err := os.ReadFile(first.Bootstrap)
			if err != nil {
				s.Fatal(err)
			}
			silent := strings.ReplaceAll(string(bootstrap), "key: x-peer-undelivered", "key: x-without-meaning")
			if err := os.WriteFile(first.Bootstrap, []byte(silent), 0o644); err != nil || silent == string(bootstrap) {
				s.Fatalf("taking the safeguard out: %v", err)
			}
			first.Envoy.Kill()
			startAgain(s, first.Envoy)
			client, failed := s.Client(w.Lab, w.Token("alice"), lab.HTTP1), 0
			for range 10 {
				if a := s.Call(client, "GET", w.old.FrontURL()+migrations, "", nil); a.Status == 503 {
					failed++
				}
			}
			if failed == 0 {
				s.Error("without x-peer-undelivered no request failed: it is no safeguard, or this test sees nothing")
			}
		})
	})
}

// createsOnce creates large objects through the old front, and wants each of them created once, by the second server.
func createsOnce(s *suite.S, w world, name string, first, second *plane.Node) {
	s.Helper()
	const each = 8
	// What an object may hold at most, and what a server reads at most of a request (3 MiB): white space makes up for it.
	padding := strings.Repeat("# about a megabyte of what is between the certificates\n", 1_000_000/55)
	object := `{"apiVersion":"certificates.k8s.io/v1","kind":"ClusterTrustBundle","metadata":{"name":"%s"},"spec":{"trustBundle":%s}}`
	bundle := string(mustJSON(s, padding+string(w.PKI.CA.CertPEM())))
	var names []string
	for _, protocol := range []lab.Protocol{lab.HTTP1, lab.HTTP2} {
		client := s.Client(w.Lab, w.Token("alice"), protocol)
		for i := range each {
			name := fmt.Sprintf("%s-%d-%d", name, protocol, i)
			body := fmt.Sprintf(object, name, bundle)
			if i%2 == 1 {
				body += strings.Repeat(" ", 3<<20-len(body))
			}
			a := s.Call(client, "POST", w.old.FrontURL()+bundles, body, http.Header{"User-Agent": {name[:len(name)-4]}})
			if a.Status != 201 {
				s.Fatalf("creating %s (%d bytes) answered %d: %.500s", name, len(body), a.Status, a.Body)
			}
			if got := a.Header.Values("X-Kubernetes-Peer-Proxied"); len(got) != 1 {
				s.Errorf("x-kubernetes-peer-proxied is %q on the answer to a request that was tried twice", got)
			}
			names = append(names, name)
		}
	}
	if counts := auditCounts(s, name, len(names), first, second); counts[0] != 0 {
		s.Errorf("the servers created %v, want all by the second", counts)
	}
	client := s.Client(w.Lab, w.Token("alice"), lab.HTTP1)
	for _, name := range names {
		s.Want(client, "DELETE", second.DirectURL()+bundles+"/"+name, "", 200, "")
	}
}

// frozen runs f while the node's xds-server is stopped where it stands, so that its Envoy is not told of what happens.
func frozen(s *suite.S, n *plane.Node, f func()) {
	s.Helper()
	if err := n.XDSServer.Pause(); err != nil {
		s.Fatal(err)
	}
	defer func() {
		if err := n.XDSServer.Resume(); err != nil {
			s.Error(err)
		}
	}()
	f()
}

func startAgain(s *suite.S, p *lab.Process) {
	s.Helper()
	if err := p.Start(); err != nil {
		s.Fatal(err)
	}
	if err := p.WaitReady(s.Ctx); err != nil {
		s.Fatal(err)
	}
}

// healthy waits until a node's Envoy sends to so many peers.
func healthy(s *suite.S, n *plane.Node, peers int) {
	s.Helper()
	err := plane.Eventually(s.Ctx, fmt.Sprint(peers, " peers are healthy"), func() error {
		if got := stat(s, n, "cluster.peers/new1+new2/plain.membership_healthy"); got != peers {
			return fmt.Errorf("%d are", got)
		}
		return nil
	})
	if err != nil {
		s.Fatal(err)
	}
}

// stat is one of the numbers that a node's Envoy counts.
func stat(s *suite.S, n *plane.Node, name string) int {
	s.Helper()
	b, err := n.EnvoyAdmin(s.Ctx, "GET", "/stats")
	if err != nil {
		s.Fatal(err)
	}
	for line := range strings.Lines(string(b)) {
		if value, ok := strings.CutPrefix(line, name+": "); ok {
			n, err := strconv.Atoi(strings.TrimSpace(value))
			if err != nil {
				s.Fatal(err)
			}
			return n
		}
	}
	s.Fatalf("the Envoy of %s does not count %s", n.Name, name)
	return 0
}
