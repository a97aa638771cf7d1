// Package routing proves on real parts that an old apiserver's front answers for a new one, as the caller, byte for
// byte, and that nothing else changes.
package routing

import (
	"context"
	"sync"
	"testing"

	"xds-server/test/e2e/suite"
	"xds-server/test/lab"
	"xds-server/test/plane"
)

func TestMain(m *testing.M) { suite.Main(m, lab.Upgrade()...) }

// world is a control plane with its Envoys and xds-servers.
type world struct {
	*lab.Lab
	*plane.Plane
	// old runs Kubernetes 1.36 and updated 1.37.
	old, updated *plane.Node
}

var shared struct {
	sync.Once
	world
	err error
}

// upgrade is the control plane that most scenarios share: they leave it as they found it.
func upgrade(t testing.TB) world {
	t.Helper()
	shared.Do(func() {
		shared.world, shared.err = start(lab.Config{Nodes: []lab.NodeConfig{
			{Name: "old", Version: lab.Kube136}, {Name: "new", Version: lab.Kube137},
		}}, plane.Options{})
	})
	if shared.err != nil {
		t.Fatal(shared.err)
	}
	return shared.world
}

// alone is a control plane for one scenario, which may break it.
func alone(t testing.TB, c lab.Config, o plane.Options) world {
	t.Helper()
	w, err := start(c, o)
	if w.Lab != nil {
		t.Cleanup(func() {
			if err := w.Close(); err != nil {
				t.Errorf("closing the lab: %v", err)
			}
		})
	}
	if err != nil {
		t.Fatal(err)
	}
	return w
}

// start starts a control plane whose first node is the old one and whose second is the new one. The plane is started
// unless o says NoXDSServer, which only writes its files.
func start(c lab.Config, o plane.Options) (w world, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), lab.StartTimeout)
	defer cancel()
	if w.Lab, err = lab.New(c); err != nil {
		return w, err
	}
	if err = w.Lab.Start(ctx); err != nil {
		return w, err
	}
	if w.Plane, err = plane.Start(ctx, w.Lab, o); err != nil {
		return w, err
	}
	w.old, w.updated = w.Plane.Nodes[w.Lab.Nodes[0].Name], w.Plane.Nodes[w.Lab.Nodes[1].Name]
	return w, nil
}
