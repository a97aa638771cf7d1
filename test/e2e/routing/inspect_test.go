package routing

import (
	"context"
	"encoding/json"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"xds-server/test/e2e/suite"
	"xds-server/test/lab"
	"xds-server/test/plane"
)

// services is what a list by reflection has to name.
var services = []string{
	"envoy.service.cluster.v3.ClusterDiscoveryService", "envoy.service.discovery.v3.AggregatedDiscoveryService",
	"envoy.service.endpoint.v3.EndpointDiscoveryService", "envoy.service.route.v3.RouteDiscoveryService",
	"envoy.service.runtime.v3.RuntimeDiscoveryService", "envoy.service.status.v3.ClientStatusDiscoveryService",
	"grpc.health.v1.Health", "grpc.reflection.v1.ServerReflection",
}

func TestGRPCurlShowsWhatANodeIsGiven(t *testing.T) {
	suite.Scenario(t, "A7", "grpcurl lists the services by reflection and fetches a node's routes and clusters, over the socket and mutual TLS", func(s *suite.S) {
		w := upgrade(s)
		socket := []string{"-plaintext", "-unix", w.old.XDSSocket}
		pki := func(name string) string { return filepath.Join(w.old.PKI, name) }
		tcp := func(cert, key string) []string {
			return []string{"-cacert", pki("ca.crt"), "-cert", cert, "-key", key, w.old.XDSAddress}
		}
		for _, to := range [][]string{socket, tcp(pki("front-proxy-client.crt"), pki("front-proxy-client.key"))} {
			looksAround(s, w, to)
		}
		for name, to := range strangers(s, w, pki("ca.crt"), tcp) {
			if out, err := grpcurl(s, append(to, "list")...); err == nil {
				s.Errorf("%s was let in: %s", name, out)
				// No TLS, or no good certificate: the server closes with bytes unread, upon which Linux sends a reset. That may
				// come instead of the alert, or before it is read. An answer to the call itself would be none of these.
			} else if !strings.Contains(out, "tls: ") && !strings.Contains(out, "EOF") && !strings.Contains(out, "connection reset by peer") {
				s.Errorf("%s was refused, but not by TLS: %s", name, out)
			}
			if out, err := grpcurl(s, append(tcp(pki("front-proxy-client.crt"), pki("front-proxy-client.key")), "list")...); err != nil {
				s.Errorf("after %s, nobody is let in: %v\n%s", name, err, out)
			}
		}
	})
}

// looksAround does what the README shows.
func looksAround(s *suite.S, w world, to []string) {
	s.Helper()
	out, err := grpcurl(s, append(to, "list")...)
	if err != nil {
		s.Fatalf("listing the services: %v\n%s", err, out)
	}
	for _, name := range services {
		if !strings.Contains(out, name+"\n") {
			s.Errorf("%s is not listed in:\n%s", name, out)
		}
	}
	for _, node := range []*plane.Node{w.old, w.updated} {
		fetch := func(method string) string {
			args := append([]string{"-d", fmt.Sprintf(`{"node":{"id":%q}}`, node.Name)}, append(to, method)...)
			out, err := grpcurl(s, args...)
			if err != nil {
				s.Fatalf("%s: %v\n%s", method, err, out)
			}
			var answer struct {
				VersionInfo string
				Resources   []struct{ Name string }
			}
			if err := json.Unmarshal([]byte(out), &answer); err != nil {
				s.Fatalf("%s answered what is no JSON: %v\n%s", method, err, out)
			}
			if answer.VersionInfo == "" || len(answer.Resources) == 0 {
				s.Errorf("%s gave nothing for %s: %s", method, node.Name, out)
			}
			return out
		}
		routes := fetch("envoy.service.route.v3.RouteDiscoveryService/FetchRoutes")
		clusters := fetch("envoy.service.cluster.v3.ClusterDiscoveryService/FetchClusters")
		if key := "storagemigration.k8s.io/v1/storageversionmigrations"; node == w.old && !strings.Contains(routes, key) {
			s.Errorf("the routes of %s have nothing about %s", node.Name, key)
		}
		if node == w.old && !strings.Contains(clusters, "peers/"+w.updated.Name+"/fp") {
			s.Errorf("the clusters of %s have none for %s: %s", node.Name, w.updated.Name, clusters)
		}
	}
	if out, err := grpcurl(s, append(to, "grpc.health.v1.Health/Check")...); err != nil || !strings.Contains(out, "SERVING") {
		s.Errorf("health: %v\n%s", err, out)
	}
}

// strangers are the ways to connect that must be refused: no certificate, one of the cluster's authority, and one of the
// front-proxy authority with another name.
func strangers(s *suite.S, w world, ca string, tcp func(cert, key string) []string) map[string][]string {
	s.Helper()
	dir := s.TempDir()
	out := map[string][]string{
		"a client without a certificate": {"-cacert", ca, w.old.XDSAddress},
		"a client without TLS":           {"-plaintext", w.old.XDSAddress},
	}
	for name, authority := range map[string]*lab.Pair{"cluster": w.PKI.CA, "front-proxy": w.PKI.FrontProxyCA} {
		user := "front-proxy-client"
		if name == "front-proxy" {
			user = "somebody-else"
		}
		pair, err := authority.IssueClient(user)
		if err != nil {
			s.Fatal(err)
		}
		if err := pair.Write(dir, name); err != nil {
			s.Fatal(err)
		}
		file := filepath.Join(dir, name)
		out[user+" of the "+name+" CA"] = tcp(file+".crt", file+".key")
	}
	return out
}

func grpcurl(s *suite.S, args ...string) (string, error) {
	s.Helper()
	s.Count(1)
	ctx, cancel := context.WithTimeout(s.Ctx, 20*time.Second)
	defer cancel()
	out, err := exec.CommandContext(ctx, lab.GRPCurl.Path(), append([]string{"-connect-timeout", "5", "-max-time", "15"}, args...)...).CombinedOutput()
	return string(out), err
}
