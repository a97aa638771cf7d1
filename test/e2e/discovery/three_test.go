package discovery

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"xds-server/test/e2e/suite"
	"xds-server/test/lab"
	"xds-server/test/plane"
)

// Three servers, each of which lacks what another has.
func TestThreeServers(t *testing.T) {
	w := alone(t, plane.Options{Failover: true},
		lab.NodeConfig{Name: "old", Version: lab.Kube136, RuntimeConfig: []string{"policy/v1=false"}},
		lab.NodeConfig{Name: "new", Version: lab.Kube137, RuntimeConfig: []string{"batch/v1=false"}},
		lab.NodeConfig{Name: "third", Version: lab.Kube136, RuntimeConfig: []string{"api/all=true", "autoscaling/v1=false"}})

	var before documents
	suite.Scenario(t, "A1-three", "three servers that differ in every direction: all documents are equal through all fronts", func(s *suite.S) {
		before = settled(s, w, w.nodes, "three servers", union(s, w, w.nodes...))
		client := s.Client(w.Lab, w.Token("bob"), lab.HTTP2)
		seen := map[string]bool{}
		for _, n := range w.nodes {
			seen[strings.Join(without(claims(mustList(s, client, n.FrontURL(), "")), claims(mustList(s, client, n.DirectURL(), nopeer))), " ")] = true
		}
		if len(seen) != 3 || seen[""] {
			s.Errorf("the servers lack %d different things, want 3", len(seen))
		}
	})
	suite.Scenario(t, "A1-down", "with a server down all documents are as before, through every front, and of an xds-server that starts without state meanwhile none is silently partial", func(s *suite.S) {
		w.updated.Server.Kill()
		defer func() { // for the scenarios after this
			if w.updated.Server.Running() {
				return
			}
			if err := w.updated.Server.Restart(s.Ctx, lab.Kube137); err != nil {
				s.Error(err)
			}
		}()
		same := func(what string) {
			s.Helper()
			docs := settled(s, w, w.nodes, what, func(groupList) error { return nil })
			if err := before.differences(docs); err != nil {
				s.Errorf("%s: %v", what, err)
			}
		}
		same("the new server down")
		newcomer(s, w, w.nodes[2], before, "storagemigration.k8s.io/v1")
		if err := w.updated.Server.Start(); err != nil {
			s.Fatal(err)
		}
		if err := w.updated.Server.WaitReady(s.Ctx); err != nil {
			s.Fatal(err)
		}
		same("the new server up again")
	})
	suite.Scenario(t, "A1-restarts", "after the old server restarts while the new one runs, and takes away its APIServices, all documents are as before, and nothing vanished meanwhile", func(s *suite.S) {
		watch := watchAPIs(s, w, w.nodes...)
		for i := range 2 {
			watch.restart(w.old, lab.Kube136)
			docs := settled(s, w, w.nodes, fmt.Sprintf("restart %d of the old server", i+1), union(s, w, w.nodes...))
			if err := before.differences(docs); err != nil {
				s.Errorf("after restart %d: %v", i+1, err)
			}
		}
		watch.end()
	})
	suite.Scenario(t, "A6-version", "a server restarts at another version: the documents of all fronts follow within two poll intervals, and nothing vanishes that some server serves throughout", func(s *suite.S) {
		watch := watchAPIs(s, w, w.old, w.updated)
		w.nodes[2].Server.RuntimeConfig = nil
		watch.restart(w.nodes[2], lab.Kube137)
		docs := settled(s, w, w.nodes, "the third server is 1.37 now", union(s, w, w.nodes...))
		if before.differences(docs) == nil {
			s.Error("the documents have not changed")
		}
		watch.end()
	})
}

// newcomer replaces a node's xds-server by one without state while a server is down. It may not know what that server
// served: then it has to say so, or another node's answers. Each document has to be there again, whole, in the end.
func newcomer(s *suite.S, w world, n *plane.Node, before documents, peerOnly string) {
	s.Helper()
	n.XDSServer.Kill()
	if err := n.XDSServer.Start(); err != nil {
		s.Fatal(err)
	}
	if err := n.XDSServer.WaitReady(s.Ctx); err != nil {
		s.Fatal(err)
	}
	client := s.Client(w.Lab, w.Token("bob"), lab.HTTP2)
	list := []document{
		{"/apis", asJSON + aggregated}, {"/apis", asJSON}, {"/apis/" + peerOnly, asJSON}, {"/api/v1", asJSON}, {"/openapi/v3", asJSON},
	}
	told, whole := map[string]int{}, map[document]bool{}
	for began := time.Now(); time.Since(began) < 5*pollInterval || len(whole) < len(list) && time.Since(began) < patience; {
		for _, d := range list {
			a := s.Call(client, "GET", n.FrontURL()+d.path, "", map[string][]string{"Accept": {d.accept}})
			said := a.Header.Get(toldBy)
			told[fmt.Sprint(a.Status, " ", said)]++
			switch same := string(a.Body) == string(before[d].body); {
			case a.Status == 200 && same:
				whole[d] = true
			case a.Status == 200 && said != "partial":
				s.Fatalf("%s as %s of the newcomer is told to be %q:%s", d.path, d.accept, said, firstDifference(a.Body, before[d].body))
			case a.Status != 200 && a.Status != 503:
				s.Fatalf("%s of the newcomer answered %d: %.300s", d.path, a.Status, a.Body)
			}
		}
	}
	for _, d := range list {
		if before[d].status != 200 || !whole[d] {
			s.Errorf("%s as %s was %d before, and never whole again: the newcomer answered %v", d.path, d.accept, before[d].status, told)
		}
	}
	fmt.Printf("       the newcomer answered %v\n", told)
}
