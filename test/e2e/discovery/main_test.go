// Package discovery proves on real parts that every discovery document of the cluster is the same, and complete,
// through every front, and that clients can rely on it.
package discovery

import (
	"context"
	"os"
	"testing"
	"time"

	"sigs.k8s.io/yaml"

	"xds-server/test/e2e/suite"
	"xds-server/test/lab"
	"xds-server/test/plane"
)

func TestMain(m *testing.M) {
	suite.Main(m, append(lab.Upgrade(), lab.KubeAPIServer(lab.Kube134), lab.KubeControllerManager(lab.Kube136), lab.Helm, lab.OldDiscovery)...)
}

// pollInterval is that of the suite's xds-servers.
const pollInterval = time.Second

// world is a control plane with its Envoys and xds-servers.
type world struct {
	*lab.Lab
	*plane.Plane
	// nodes are all of them, in the order of the lab; old is the first and updated the second, of a newer version.
	nodes        []*plane.Node
	old, updated *plane.Node
}

// alone starts a control plane that ends with the test.
func alone(t testing.TB, o plane.Options, nodes ...lab.NodeConfig) world {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), lab.StartTimeout)
	defer cancel()
	var w world
	var err error
	if w.Lab, err = lab.New(lab.Config{Nodes: nodes}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := w.Close(); err != nil {
			t.Errorf("closing the lab: %v", err)
		}
	})
	if err := w.Lab.Start(ctx); err != nil {
		t.Fatal(err)
	}
	o.PollInterval = pollInterval
	if w.Plane, err = plane.Start(ctx, w.Lab, o); err != nil {
		t.Fatal(err)
	}
	for _, n := range w.Lab.Nodes {
		w.nodes = append(w.nodes, w.Plane.Nodes[n.Name])
	}
	w.old, w.updated = w.nodes[0], w.nodes[1]
	return w
}

// reconfigure changes a setting of every xds-server and starts them anew.
func reconfigure(s *suite.S, w world, key string, value any) {
	s.Helper()
	for _, n := range w.nodes {
		b, err := os.ReadFile(n.Config)
		if err != nil {
			s.Fatal(err)
		}
		var config map[string]any
		if err := yaml.Unmarshal(b, &config); err != nil {
			s.Fatal(err)
		}
		config[key] = value
		if b, err = yaml.Marshal(config); err != nil {
			s.Fatal(err)
		}
		if err := os.WriteFile(n.Config, b, 0o644); err != nil {
			s.Fatal(err)
		}
		if err := n.XDSServer.Stop(s.Ctx); err != nil {
			s.Fatal(err)
		}
	}
	startXDSServers(s, w)
}

// startXDSServers starts those that do not run, and waits until every front knows every server.
func startXDSServers(s *suite.S, w world) {
	s.Helper()
	for _, n := range w.nodes {
		if n.XDSServer.Running() {
			continue
		}
		if err := n.XDSServer.Start(); err != nil {
			s.Fatal(err)
		}
	}
	if err := w.WaitReady(s.Ctx); err != nil {
		s.Fatal(err)
	}
	if err := w.WaitComplete(s.Ctx); err != nil {
		s.Fatal(err)
	}
}

// eventually is plane.Eventually with a limit of its own, and fails the scenario.
func eventually(s *suite.S, limit time.Duration, what string, ask func() error) {
	s.Helper()
	ctx, cancel := context.WithTimeout(s.Ctx, limit)
	defer cancel()
	if err := plane.Eventually(ctx, what, ask); err != nil {
		s.Fatal(err)
	}
}
