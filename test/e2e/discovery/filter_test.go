package discovery

import (
	"encoding/json"
	"fmt"
	"net/http"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"xds-server/test/e2e/suite"
	"xds-server/test/lab"
	"xds-server/test/plane"
)

// testFilter is what becomes of documents while xds-servers are away.
func testFilter(t *testing.T, p pair) {
	suite.Scenario(t, "F-failover", "with a node's xds-server killed its front's documents are the same, from another node's", func(s *suite.S) {
		before := settled(s, p.world, p.nodes, "before", union(s, p.world, p.nodes...))
		for _, n := range p.nodes {
			watch := watchAPIs(s, p.world, p.nodes...)
			watch.away("the xds-server of "+n.Name, n.XDSServer.Kill)
			client := s.Client(p.Lab, p.Token("bob"), lab.HTTP2)
			killed := time.Now()
			eventually(s, 30*time.Second, "another xds-server answers for "+n.Name, func() error {
				docs, err := everyDocument(s, client, n.FrontURL(), mustListOr503(s, client, n.FrontURL()))
				if err == nil {
					err = before.differences(docs)
				}
				return err
			})
			fmt.Printf("       another xds-server has given all documents %.1f s after that of %s was killed\n", time.Since(killed).Seconds(), n.Name)
			startXDSServers(s, p.world)
			settled(s, p.world, p.nodes, "its xds-server started again without state", union(s, p.world, p.nodes...))
			watch.end()
		}
	})
	suite.Scenario(t, "F-none", "with every xds-server killed while views differ each document is 503 with a Status, never a part of the truth; nopeer and all else work on", func(s *suite.S) {
		noXDSServer(s, p)
	})
	suite.Scenario(t, "F-fallback", "on the fallback chain each document is the local server's own, with views that differ and no xds-server", func(s *suite.S) {
		for _, n := range p.nodes {
			n.XDSServer.Kill()
		}
		p.old.Envoy.Kill()
		if err := p.old.Envoy.Start(); err != nil {
			s.Fatal(err)
		}
		if err := p.old.Envoy.WaitReady(s.Ctx); err != nil {
			s.Fatal(err)
		}
		locals(s, p.world, p.old)
		startXDSServers(s, p.world)
		settled(s, p.world, p.nodes, "routed again", union(s, p.world, p.nodes...))
	})
}

// mustListOr503 are the groups of a front, none while it does not answer.
func mustListOr503(s *suite.S, client *http.Client, url string) groupList {
	groups, err := list(s, client, url, "")
	if err != nil {
		s.Logf("meanwhile: %v", err)
	}
	return groups
}

func noXDSServer(s *suite.S, p pair) {
	client := s.Client(p.Lab, p.Token("bob"), lab.HTTP2)
	groups := mustList(s, client, p.old.FrontURL(), "")
	for _, n := range p.nodes {
		n.XDSServer.Kill()
	}
	index, err := openAPIv3Index(s.Call(client, "GET", p.old.DirectURL()+"/openapi/v3", "", nil))
	if err != nil {
		s.Fatal(err)
	}
	list := append(fixedDocuments(), versionDocuments(groups)...)
	for _, url := range index {
		list = append(list, document{url, asJSON})
	}
	for _, n := range p.nodes {
		for _, protocol := range []lab.Protocol{lab.HTTP1, lab.HTTP2} {
			client := s.Client(p.Lab, p.Token("bob"), protocol)
			docs, err := readDocuments(s.Ctx, client, n.FrontURL(), list)
			if err != nil {
				s.Fatal(err)
			}
			for d, r := range docs {
				if r.status != 503 {
					s.Errorf("%s as %s at the front of %s answered %d with %d bytes: %.100s", d.path, d.accept, n.Name, r.status, len(r.body), r.body)
					continue
				}
				var status metav1.Status
				if err := json.Unmarshal(r.body, &status); err != nil || status.Kind != "Status" || status.Reason != metav1.StatusReasonServiceUnavailable || status.Code != 503 {
					s.Errorf("%s as %s at the front of %s answered %s: %.300q", d.path, d.accept, n.Name, r.kind, r.body)
				}
			}
			for _, path := range []string{"/apis", "/api"} {
				header := http.Header{"Accept": {asJSON + aggregated + nopeer}}
				direct, front := s.Call(client, "GET", n.DirectURL()+path, "", header), s.Call(client, "GET", n.FrontURL()+path, "", header)
				if front.Status != 200 || string(front.Body) != string(direct.Body) {
					s.Errorf("%s at the front of %s answered %d with %d bytes", path, n.Name, front.Status, len(front.Body))
				}
			}
			s.Want(client, "GET", n.FrontURL()+"/api/v1/namespaces/default", "", 200, "")
			s.Want(client, "GET", n.FrontURL()+migrations, "", 200, "")
		}
	}
	startXDSServers(s, p.world)
	settled(s, p.world, p.nodes, "xds-servers started again", union(s, p.world, p.nodes...))
}

// locals wants every document of a front to be the one of its server.
func locals(s *suite.S, w world, n *plane.Node) {
	s.Helper()
	client := s.Client(w.Lab, w.Token("bob"), lab.HTTP2)
	groups := mustList(s, client, n.DirectURL(), "")
	direct, err := everyDocument(s, client, n.DirectURL(), groups)
	if err != nil {
		s.Fatal(err)
	}
	front, err := everyDocument(s, client, n.FrontURL(), groups)
	if err != nil {
		s.Fatal(err)
	}
	if err := direct.differences(front); err != nil {
		s.Errorf("the server of %s and its front: %v", n.Name, err)
	}
	if got := s.Call(client, "GET", n.FrontURL()+"/apis", "", http.Header{"Accept": {asJSON + aggregated}}).Header.Get(toldBy); got != "local" {
		s.Errorf("a local document is told to be %s", got)
	}
}

// testEqualViews needs a pair whose newer server has left for good.
func testEqualViews(t *testing.T, p pair) {
	suite.Scenario(t, "F-equal", "while all views are equal each document is the local server's own, with xds-servers up or down", func(s *suite.S) {
		// The other server comes back as what the one that stayed is.
		p.updated.Server.RuntimeConfig = p.old.Server.RuntimeConfig
		if err := p.updated.Server.Restart(s.Ctx, p.old.Server.Version); err != nil {
			s.Fatal(err)
		}
		reconfigure(s, p.world, "hold", "1h")
		client := s.Client(p.Lab, p.Token("bob"), lab.HTTP2)
		for _, n := range p.nodes {
			eventually(s, 20*time.Second, "documents are local at the front of "+n.Name, func() error {
				a := s.Call(client, "GET", n.FrontURL()+"/apis", "", http.Header{"Accept": {asJSON + aggregated}})
				if got := a.Header.Get(toldBy); a.Status != 200 || got != "local" {
					return fmt.Errorf("answered %d, %q", a.Status, got)
				}
				return nil
			})
		}
		for _, n := range p.nodes {
			locals(s, p.world, n)
		}
		for _, n := range p.nodes {
			n.XDSServer.Kill()
		}
		for _, n := range p.nodes {
			locals(s, p.world, n)
		}
		startXDSServers(s, p.world)
	})
}
