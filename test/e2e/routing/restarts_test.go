package routing

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"strconv"
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
				bringHome(s, w)
				elsewhere := handshakes(s, w)
				for _, n := range nodes {
					if err := stop(n.XDSServer); err != nil {
						s.Fatal(err)
					}
				}
				if len(nodes) == 1 {
					waitFailover(s, w, elsewhere)
				} else {
					waitDisconnected(s, w)
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
				if n := handshakes(s, w) - elsewhere; len(nodes) == 1 && n != 1 {
					s.Errorf("the Envoy of %s lost its xds-server once, and there were %d connections to other nodes'", nodes[0].Name, n)
				}
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

// handshakes counts the TLS connections to other nodes' xds-servers: the own one's is a socket.
func handshakes(s *suite.S, w world) int {
	s.Helper()
	return counter(s, w.old, "cluster.xds-server.ssl.handshake") + counter(s, w.updated, "cluster.xds-server.ssl.handshake")
}

// xdsStreams is how many streams a node's xds-server has.
func xdsStreams(s *suite.S, n *plane.Node) int {
	s.Helper()
	a, err := lab.Call(s.Ctx, http.DefaultClient, "GET", n.AdminURL+"/metrics", "", nil)
	if err != nil {
		s.Fatal(err)
	}
	for line := range strings.Lines(string(a.Body)) {
		if value, ok := strings.CutPrefix(line, "xds_server_streams "); ok {
			streams, err := strconv.Atoi(strings.TrimSpace(value))
			if err != nil {
				s.Fatal(err)
			}
			return streams
		}
	}
	s.Fatalf("the xds-server of %s does not count its streams", n.Name)
	return 0
}

// waitFailover waits until an Envoy that has lost its xds-server is with another node's.
func waitFailover(s *suite.S, w world, before int) {
	s.Helper()
	if err := plane.Eventually(s.Ctx, "an Envoy has gone to another node's xds-server", func() error {
		if handshakes(s, w) == before {
			return errors.New("there was no TLS handshake")
		}
		return nil
	}); err != nil {
		s.Fatal(err)
	}
	waitConnected(s, w)
}

// waitDisconnected waits until no Envoy has a stream.
func waitDisconnected(s *suite.S, w world) { waitState(s, w, 0) }

// waitConnected waits until every Envoy has a stream, wherever it may be.
func waitConnected(s *suite.S, w world) { waitState(s, w, 1) }

// waitState waits until every Envoy is in a state to stay: one that has just lost its stream may not know it yet.
func waitState(s *suite.S, w world, state int) {
	s.Helper()
	ctx, cancel := context.WithTimeout(s.Ctx, 20*time.Second)
	defer cancel()
	for _, n := range w.Plane.Nodes {
		seen := 0
		if err := plane.Eventually(ctx, fmt.Sprintf("control_plane.connected_state of %s stays %d", n.Name, state), func() error {
			if now := counter(s, n, "control_plane.connected_state"); now != state {
				seen = 0
				return fmt.Errorf("it is %d", now)
			}
			if seen++; seen < 10 {
				return fmt.Errorf("it has been so for a moment only")
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
		if n := counter(s, w.old, "cluster.xds-server.ssl.handshake"); n == 0 {
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
		// Now the other one goes, so that all are at this one, with the same routes.
		logged = size(s, w.old.XDSServer.Log)
		w.updated.XDSServer.Kill()
		waitConnected(s, w)
		for _, name := range []string{"old", "new"} {
			if log := logFrom(s, w.old.XDSServer.Log, logged); !strings.Contains(log, `"Envoy connected","node":"`+name+`"`) {
				s.Errorf("the Envoy of %s did not come to the xds-server that is left: %s", name, log)
			}
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
