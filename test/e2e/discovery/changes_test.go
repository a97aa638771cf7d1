package discovery

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"time"

	"testing"

	"xds-server/test/e2e/suite"
	"xds-server/test/lab"
	"xds-server/test/plane"
)

const definitions = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"

// definition is a CRD of a group.
func definition(group, plural, kind string) string {
	return fmt.Sprintf(`{"apiVersion":"apiextensions.k8s.io/v1","kind":"CustomResourceDefinition","metadata":{"name":"%[2]s.%[1]s"},
		"spec":{"group":%[1]q,"scope":"Namespaced","names":{"plural":%[2]q,"singular":%[4]q,"kind":%[3]q},"versions":[{"name":"v1","served":true,"storage":true,
		"schema":{"openAPIV3Schema":{"type":"object","properties":{"spec":{"type":"object","properties":{"size":{"type":"integer"}}}}}}}]}}`,
		group, plural, kind, strings.ToLower(kind))
}

// everywhere waits until each server's own documents, of all kinds, list a group or list it no more.
func everywhere(s *suite.S, w world, group string, listed bool) {
	s.Helper()
	client := s.Client(w.Lab, w.Admin(), lab.HTTP2)
	for _, n := range w.nodes {
		eventually(s, time.Minute, fmt.Sprintf("%s lists %s itself: %v", n.Name, group, listed), func() error {
			return mentions(s, client, n.DirectURL(), nopeer, group, listed)
		})
	}
}

// mentions says whether the documents that list groups have one, or have it not.
func mentions(s *suite.S, client *http.Client, url, profile, group string, listed bool) error {
	for _, d := range []document{{"/apis", asJSON + aggregated + profile}, {"/apis", asJSON}, {"/openapi/v3", asJSON}, {"/openapi/v2", asJSON}} {
		a, err := lab.Call(s.Ctx, client, "GET", url+d.path, "", http.Header{"Accept": {d.accept}})
		if err != nil {
			return err
		}
		if a.Status != 200 {
			return fmt.Errorf("%s answered %d: %.200s", d.path, a.Status, a.Body)
		}
		if got := strings.Contains(string(a.Body), group); got != listed {
			return fmt.Errorf("%s as %s: %v", d.path, d.accept, got)
		}
	}
	return nil
}

// createCRD creates a CRD at a front, and waits until all servers list it themselves.
func createCRD(s *suite.S, w world, n *plane.Node, group string) {
	s.Helper()
	client := s.Client(w.Lab, w.Token("alice"), lab.HTTP2)
	s.Want(client, "POST", n.FrontURL()+definitions, definition(group, "gadgets", "Gadget"), 201, "")
	everywhere(s, w, group, true)
}

func deleteCRD(s *suite.S, w world, n *plane.Node, group string) {
	s.Helper()
	client := s.Client(w.Lab, w.Token("alice"), lab.HTTP2)
	s.Want(client, "DELETE", n.FrontURL()+definitions+"/gadgets."+group, "", 200, "")
	everywhere(s, w, group, false)
}

// deletedCRD is scenario 15.
func deletedCRD(s *suite.S, p pair) {
	const group = "deleted.example.com"
	createCRD(s, p.world, p.old, group)
	docs := settled(s, p.world, p.nodes, "a CRD created", union(s, p.world, p.nodes...))
	if err := docs.mention(group, true); err != nil {
		s.Error(err)
	}
	deleteCRD(s, p.world, p.updated, group)
	// A server itself takes it out of OpenAPI a moment later than out of discovery.
	eventually(s, 10*time.Second, "the CRD is gone from every document", func() error {
		return settled(s, p.world, p.nodes, "the CRD deleted", union(s, p.world, p.nodes...)).mention(group, false)
	})
	client := s.Client(p.Lab, p.Token("bob"), lab.HTTP2)
	for _, n := range p.nodes {
		for _, path := range []string{"/apis/" + group, "/apis/" + group + "/v1", "/openapi/v3/apis/" + group + "/v1"} {
			s.Want(client, "GET", n.FrontURL()+path, "", 404, "")
		}
	}
	// Nothing brings it back, poll after poll.
	ctx, cancel := context.WithTimeout(s.Ctx, 15*pollInterval)
	defer cancel()
	tick := time.NewTicker(pollInterval / 2)
	defer tick.Stop()
	for {
		for _, n := range p.nodes {
			if err := mentions(s, client, n.FrontURL(), "", group, false); err != nil {
				s.Fatalf("the group came back at the front of %s: %v", n.Name, err)
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// mention says whether a group is in every document that lists groups, or in none of all.
func (d documents) mention(group string, want bool) error {
	for key, r := range d {
		got := strings.Contains(string(r.body), group)
		lists := key.path == "/apis" && (key.accept == asJSON || key.accept == asJSON+aggregated || key.accept == asProtobuf) ||
			key.path == "/openapi/v3" || key.path == "/openapi/v2" && key.accept == asJSON
		if got && !want || want && lists && !got {
			return fmt.Errorf("%s as %s has %s: %v", key.path, key.accept, group, got)
		}
	}
	return nil
}

// testFollowing is acceptance 6.
func testFollowing(t *testing.T, p pair) {
	suite.Scenario(t, "A6-crd", "while CRDs come and go, documents follow within two poll intervals and no client sees an API vanish that some server serves", func(s *suite.S) {
		watch := watchAPIs(s, p.world, p.nodes...)
		const group = "followed.example.com"
		client := s.Client(p.Lab, p.Token("alice"), lab.HTTP2)
		for i, n := range p.nodes {
			before := s.Call(client, "GET", n.FrontURL()+"/apis", "", http.Header{"Accept": {asJSON + aggregated}}).Header.Get("ETag")
			createCRD(s, p.world, n, group)
			settled(s, p.world, p.nodes, fmt.Sprintf("CRD %d created", i+1), union(s, p.world, p.nodes...))
			a := s.Call(client, "GET", n.FrontURL()+"/apis", "", http.Header{"Accept": {asJSON + aggregated}, "If-None-Match": {before}})
			if a.Status != 200 || !strings.Contains(string(a.Body), group) {
				s.Errorf("the ETag of before the CRD answered %d", a.Status)
			}
			repeated(s, client, n.FrontURL()+"/apis", asJSON+aggregated, a, 200)
			deleteCRD(s, p.world, n, group)
			settled(s, p.world, p.nodes, fmt.Sprintf("CRD %d deleted", i+1), union(s, p.world, p.nodes...))
		}
		watch.end()
	})
}

// leaves is scenario 16.
func leaves(s *suite.S, p pair) {
	const hold = 12 * time.Second
	reconfigure(s, p.world, "hold", hold.String())
	before := settled(s, p.world, p.nodes, "before the server leaves", union(s, p.world, p.nodes...))
	left := union(s, p.world, p.old)
	client := s.Client(p.Lab, p.Token("bob"), lab.HTTP2)
	gone := time.Now()
	p.updated.Server.Kill()
	held := 0
	for time.Since(gone) < hold-3*time.Second {
		docs, err := everyDocument(s, client, p.old.FrontURL(), mustList(s, client, p.old.FrontURL(), ""))
		if err != nil {
			s.Fatal(err)
		}
		if err := before.differences(docs); err != nil {
			s.Fatalf("%s after the server has gone: %v", time.Since(gone), err)
		}
		s.Want(client, "GET", p.old.FrontURL()+p.path, "", 503, `"kind":"Status"`)
		held++
	}
	fmt.Printf("       held in %d rounds of all documents, hold %s\n", held, hold)
	eventually(s, 30*time.Second, "what the server alone served is gone", func() error {
		groups, err := list(s, client, p.old.FrontURL(), "")
		if err == nil {
			err = left(groups)
		}
		return err
	})
	fmt.Printf("       gone %.1f s after the server\n", time.Since(gone).Seconds())
	// The other node's front answers by the server that is left.
	docs := settled(s, p.world, p.nodes, "gone", left)
	if err := docs.mention(p.path[strings.LastIndex(p.path, "/")+1:], false); err != nil {
		s.Error(err)
	}
	for _, n := range p.nodes {
		s.Want(client, "GET", n.FrontURL()+p.path, "", 404, "")
	}
}
