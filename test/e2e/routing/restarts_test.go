package routing

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"xds-server/test/e2e/suite"
	"xds-server/test/lab"
	"xds-server/test/plane"
)

func TestXDSServerMayBeAbsentLostOrRestarted(t *testing.T) {
	w := withoutXDSServers(t)
	testColdStart(t, w)
	testMovingToRouted(t, w)
	testRestarts(t, w)
	testFailover(t, w)
}

// testRestarts needs fronts that route.
func testRestarts(t *testing.T, w world) {
	suite.Scenario(t, "A6-restart", "xds-servers killed and restarted, one and both: no route flaps, ready never drops, no request fails", func(s *suite.S) {
		load := startSteady(s, w, localThing(w.old), newerThing(w.old), localThing(w.updated), olderThing(w.updated))
		ready := watchReady(s.Ctx, w.old, w.updated)
		before, fallback := routeCounters(s, w), fallbackConnections(s, w)
		for _, stop := range []func(*lab.Process) error{
			func(p *lab.Process) error { p.Kill(); return nil },
			func(p *lab.Process) error { return p.Stop(s.Ctx) },
		} {
			for _, nodes := range [][]*plane.Node{{w.old}, {w.updated}, {w.old, w.updated}} {
				for _, n := range nodes {
					if err := stop(n.XDSServer); err != nil {
						s.Fatal(err)
					}
				}
				waitDisconnected(s, nodes)
				if len(nodes) == 1 {
					waitConnected(s, w) // to the other node's
				}
				for _, n := range nodes {
					if err := n.XDSServer.Start(); err != nil {
						s.Fatal(err)
					}
				}
				for _, n := range nodes {
					if err := n.XDSServer.WaitReady(s.Ctx); err != nil {
						s.Fatal(err)
					}
				}
				waitConnected(s, w)
			}
		}
		if drops := ready.stop(); len(drops) > 0 {
			s.Errorf("peer_routing.ready dropped %d times, first %s", len(drops), drops[0])
		}
		load.stopClean()
		if after := routeCounters(s, w); after != before {
			s.Errorf("routes or clusters changed:\n%s\nafter\n%s", after, before)
		}
		if n := fallbackConnections(s, w) - fallback; n > 0 {
			s.Errorf("%d new connections met the fallback chain", n)
		}
	})
}

// fallbackConnections counts the connections that ever met a fallback chain.
func fallbackConnections(s *suite.S, w world) int {
	s.Helper()
	return counter(s, w.old, "http.fallback.downstream_cx_total") + counter(s, w.updated, "http.fallback.downstream_cx_total")
}

// routeCounters count every change of routes and clusters.
func routeCounters(s *suite.S, w world) string {
	s.Helper()
	var b strings.Builder
	for _, n := range []*plane.Node{w.old, w.updated} {
		version, _, err := routesOf(s.Ctx, n)
		if err != nil {
			s.Fatal(err)
		}
		fmt.Fprintf(&b, "%s %s", n.Name, version)
		for _, name := range []string{"http.routed.rds.front.config_reload", "http.routed.rds.front.update_rejected",
			"cluster_manager.cluster_added", "cluster_manager.cluster_modified", "cluster_manager.cluster_removed"} {
			fmt.Fprintf(&b, " %s=%d", name, counter(s, n, name))
		}
		b.WriteString("\n")
	}
	return b.String()
}

// waitDisconnected waits until the Envoys of nodes without an xds-server have noticed: they are nowhere, or elsewhere.
func waitDisconnected(s *suite.S, nodes []*plane.Node) {
	s.Helper()
	ctx, cancel := context.WithTimeout(s.Ctx, 20*time.Second)
	defer cancel()
	for _, n := range nodes {
		if err := plane.Eventually(ctx, "the Envoy of "+n.Name+" has left its xds-server", func() error {
			if counter(s, n, "cluster.xds-server.upstream_cx_active") > 0 {
				return fmt.Errorf("it is still connected")
			}
			return nil
		}); err != nil {
			s.Fatal(err)
		}
	}
}

// waitConnected waits until every Envoy has a stream, wherever it may be.
func waitConnected(s *suite.S, w world) {
	s.Helper()
	ctx, cancel := context.WithTimeout(s.Ctx, 20*time.Second)
	defer cancel()
	for _, n := range w.Plane.Nodes {
		if err := plane.Eventually(ctx, "the Envoy of "+n.Name+" has an xds-server", func() error {
			if counter(s, n, "control_plane.connected_state") != 1 {
				return fmt.Errorf("it has none")
			}
			return nil
		}); err != nil {
			s.Fatal(err)
		}
	}
}

// testFailover needs xds-servers that run, and Envoys that know each other's.
func testFailover(t *testing.T, w world) {
	suite.Scenario(t, "A6-failover", "an Envoy that starts while its own xds-server is down is routed by the other node's, over mutual TLS", func(s *suite.S) {
		w.old.XDSServer.Kill()
		w.old.Envoy.Kill()
		logged := size(s, w.updated.XDSServer.Log)
		begin := time.Now()
		if err := w.old.Envoy.Start(); err != nil {
			s.Fatal(err)
		}
		if err := w.old.WaitRouted(s.Ctx); err != nil {
			s.Fatal(err)
		}
		fmt.Printf("       routed by the other node's xds-server %d ms after Envoy's start\n", time.Since(begin).Milliseconds())
		for _, protocol := range []lab.Protocol{lab.HTTP1, lab.HTTP2} {
			client := s.Client(w.Lab, w.Token("alice"), protocol)
			for range 20 {
				s.Want(client, "GET", w.old.FrontURL()+migrations, "", 200, "StorageVersionMigrationList")
				s.Want(client, "GET", w.old.FrontURL()+"/api/v1/namespaces/default", "", 200, "")
			}
		}
		if n := counter(s, w.old, "cluster.xds-server-peers.ssl.handshake"); n == 0 {
			s.Error("no TLS connection to another xds-server")
		}
		if log := logFrom(s, w.updated.XDSServer.Log, logged); !strings.Contains(log, `"Envoy connected","node":"old"`) {
			s.Errorf("the other xds-server did not see it: %s", log)
		}

		load := startSteady(s, w, localThing(w.old), newerThing(w.old))
		ready := watchReady(s.Ctx, w.old)
		before := routeCounters(s, w)
		if err := w.old.XDSServer.Start(); err != nil {
			s.Fatal(err)
		}
		if err := w.old.XDSServer.WaitReady(s.Ctx); err != nil {
			s.Fatal(err)
		}
		// Now the other one goes: back to its own, with the same routes.
		w.updated.XDSServer.Kill()
		waitConnected(s, w)
		ctx, cancel := context.WithTimeout(s.Ctx, 20*time.Second)
		defer cancel()
		if err := plane.Eventually(ctx, "the Envoy is back at its own xds-server", func() error {
			if counter(s, w.old, "cluster.xds-server.upstream_rq_active") == 0 {
				return fmt.Errorf("it has no stream there")
			}
			return nil
		}); err != nil {
			s.Error(err)
		}
		if drops := ready.stop(); len(drops) > 0 {
			s.Errorf("peer_routing.ready dropped %d times, first %s", len(drops), drops[0])
		}
		load.stopClean()
		if after := routeCounters(s, w); after != before {
			s.Errorf("routes or clusters changed:\n%s\nafter\n%s", after, before)
		}
	})
}

func size(s *suite.S, file string) int64 {
	s.Helper()
	info, err := os.Stat(file)
	if err != nil {
		s.Fatal(err)
	}
	return info.Size()
}

func logFrom(s *suite.S, file string, offset int64) string {
	s.Helper()
	b, err := os.ReadFile(file)
	if err != nil {
		s.Fatal(err)
	}
	return string(b[offset:])
}
