package routing

import (
	"context"
	"os"
	"strings"
	"time"

	"xds-server/test/e2e/suite"
	"xds-server/test/lab"
	"xds-server/test/plane"
)

// withBootstrap restarts a node's Envoy without one of its safeguards: with every old in its bootstrap replaced. Then it
// calls f, and restarts the Envoy as it was.
func withBootstrap(s *suite.S, n *plane.Node, old, replacement string, f func()) {
	s.Helper()
	original, err := os.ReadFile(n.Bootstrap)
	if err != nil {
		s.Fatal(err)
	}
	if !strings.Contains(string(original), old) {
		s.Fatalf("the bootstrap has no %q", old)
	}
	routed, err := n.Routed(s.Ctx)
	if err != nil {
		s.Fatal(err)
	}
	start := func(bootstrap []byte) error {
		ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
		defer cancel()
		n.Envoy.Kill()
		if err := os.WriteFile(n.Bootstrap, bootstrap, 0o644); err != nil {
			return err
		}
		if err := n.Envoy.Start(); err != nil {
			return err
		}
		return n.Envoy.WaitReady(ctx)
	}
	defer func() {
		if err := start(original); err != nil {
			s.Fatal(err)
		}
		if routed {
			if err := n.WaitRouted(s.Ctx); err != nil {
				s.Fatal(err)
			}
		}
	}()
	if err := start([]byte(strings.ReplaceAll(string(original), old, replacement))); err != nil {
		s.Fatal(err)
	}
	f()
}

// testColdStartWithoutSafeguards needs Envoys that run, and no xds-server.
func testColdStartWithoutSafeguards(s *suite.S, w world) {
	s.Helper()
	client := s.Client(w.Lab, w.Token("alice"), lab.HTTP2)
	withBootstrap(s, w.old, "value: fallback", "value: routed", func() {
		if a := s.Call(client, "GET", w.old.FrontURL()+"/api/v1/namespaces/default", "", nil); a.Status == 200 {
			s.Error("without the fallback chain the local server answers all the same: this test would not notice that it is missing")
		}
	})
	withBootstrap(s, w.old, `get(":status") ~= "404" then return end`, `get(":status") ~= "000" then return end`, func() {
		if a := s.Call(client, "GET", w.old.FrontURL()+migrations, "", nil); a.Status != 404 {
			s.Errorf("without the guard an unknown API is %d and not 404: this test would not notice that it is missing", a.Status)
		}
	})
}
