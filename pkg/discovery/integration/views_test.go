// Package integration reads real kube-apiservers.
package integration

import (
	"context"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest"

	"xds-server/pkg/discovery"
	"xds-server/pkg/peers"
	"xds-server/test/lab"
)

func TestMain(m *testing.M) {
	lab.Main(m, lab.Etcd, lab.KubeAPIServer(lab.Kube136), lab.KubeAPIServer(lab.Kube137))
}

// eventually waits for something that a real server does in its own time.
func eventually(t *testing.T, what string, within time.Duration, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(within); ; time.Sleep(20 * time.Millisecond) {
		if ok() {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("not within %s: %s", within, what)
		}
	}
}

// serves says whether an observation's view has a resource.
func serves(o discovery.Observation, group, version, resource string) bool {
	if o.View == nil {
		return false
	}
	for _, g := range o.View.Groups {
		for _, v := range g.Versions {
			for _, r := range v.Resources {
				if g.Name == group && v.Version == version && r.Resource == resource {
					return true
				}
			}
		}
	}
	return false
}

func TestTwoVersionsAreFoundAndReadAsTheyAre(t *testing.T) {
	l := lab.ForTest(t, lab.Config{Nodes: []lab.NodeConfig{{Name: "old", Version: lab.Kube136}, {Name: "new", Version: lab.Kube137}}})
	o, n := l.Node("old"), l.Node("new")
	log := zaptest.NewLogger(t, zaptest.Level(zap.InfoLevel))

	// As the lab has no Envoy here, servers are read at their own ports.
	credentials, err := discovery.NewCredentials(filepath.Join(o.PKI, "ca.crt"), filepath.Join(o.PKI, "xds-server.crt"), filepath.Join(o.PKI, "xds-server.key"), log)
	if err != nil {
		t.Fatal(err)
	}
	p := discovery.NewPoller(discovery.Options{
		Source:      peers.Static{{Name: "new", Address: n.Direct, Direct: true}, {Name: "old", Address: o.Direct, Direct: true}},
		Credentials: credentials, Interval: 500 * time.Millisecond, Timeout: 5 * time.Second, Hold: time.Hour,
		Log: log, Registerer: prometheus.NewRegistry(),
	})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- p.Run(ctx) }()
	defer func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}()

	began := time.Now()
	eventually(t, "both servers are read", 10*time.Second, func() bool { return p.AllRead() == nil })
	t.Logf("both servers were read after %s", time.Since(began).Round(time.Millisecond))
	s := p.Snapshot()
	if len(s) != 2 || s[0].Server.Name != "new" || s[1].Server.Name != "old" {
		t.Fatalf("%+v", s)
	}
	for i, want := range []bool{true, false} {
		if !s[i].Ready || !serves(s[i], "", "v1", "pods") || !serves(s[i], "apps", "v1", "deployments") {
			t.Errorf("%s is not read whole", s[i].Server.Name)
		}
		if serves(s[i], "storagemigration.k8s.io", "v1", "storageversionmigrations") != want {
			t.Errorf("%s: storagemigration.k8s.io/v1 is there: %v", s[i].Server.Name, !want)
		}
	}

	t.Run("what is read beside a view is what the server says", func(t *testing.T) {
		for i, node := range []*lab.Node{n, o} {
			documentsAreTheServersOwn(t, l, node, func() discovery.Observation { return p.Snapshot()[i] })
		}
	})

	t.Run("a restart changes the view, and never shows less than the server serves", func(t *testing.T) {
		if err := o.Server.Restart(t.Context(), lab.Kube137); err != nil {
			t.Fatal(err)
		}
		eventually(t, "the view is the new version's", 15*time.Second, func() bool {
			now := p.Snapshot()[1]
			if now.View == nil || !serves(now, "apps", "v1", "deployments") {
				t.Fatal("an API looked gone while the server restarted")
			}
			return now.Ready && serves(now, "storagemigration.k8s.io", "v1", "storageversionmigrations")
		})
	})

	t.Run("the servers are found in the cluster, by name", func(t *testing.T) {
		kubeconfig, err := l.Kubeconfig(n.DirectURL(), clusterReader(t, l))
		if err != nil {
			t.Fatal(err)
		}
		config, err := peers.ClientConfig(kubeconfig)
		if err != nil {
			t.Fatal(err)
		}
		metrics := peers.NewMetrics(prometheus.NewRegistry())
		lists, hosts := make(chan []peers.Server, 100), make(chan []string, 100)
		follow(t, func(ctx context.Context) error {
			return peers.EndpointSlice{Client: config, Port: 6445, Names: map[netip.Addr]string{netip.MustParseAddr(o.IP): "old"}, Log: log, Metrics: metrics}.
				Run(ctx, func(s []peers.Server) { lists <- s })
		})
		follow(t, func(ctx context.Context) error {
			return peers.Leases{Client: config, Log: log, Metrics: metrics}.Run(ctx, func(s []string) { hosts <- s })
		})
		want := []peers.Server{{Name: n.IP, Address: n.IP + ":6445"}, {Name: "old", Address: o.IP + ":6445"}}
		waitFor(t, lists, func(s []peers.Server) bool { return slices.Equal(s, want) })
		waitFor(t, hosts, func(s []string) bool { return strings.Join(s, " ") == "new old" })

		// A server leaves the list when it stops; its lease stays.
		if err := o.Server.Stop(t.Context()); err != nil {
			t.Fatal(err)
		}
		waitFor(t, lists, func(s []peers.Server) bool { return slices.Equal(s, want[:1]) })
		eventually(t, "the stopped server is known to be unready", 10*time.Second, func() bool { return !p.Snapshot()[1].Ready })
		if p.Snapshot()[1].View == nil {
			t.Error("the stopped server's view is not held")
		}
	})
}

// clusterReader is xds-server's own certificate, which has no more rights than it needs.
func clusterReader(t *testing.T, l *lab.Lab) lab.Credential {
	t.Helper()
	pair, err := l.PKI.CA.IssueClient(lab.XDSServerUser)
	if err != nil {
		t.Fatal(err)
	}
	return lab.Credential{Cert: pair}
}

func follow(t *testing.T, run func(context.Context) error) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

func waitFor[T any](t *testing.T, c <-chan T, ok func(T) bool) {
	t.Helper()
	timeout := time.After(30 * time.Second)
	var last T
	for {
		select {
		case last = <-c:
			if ok(last) {
				return
			}
		case <-timeout:
			t.Fatalf("not within 30 s; last: %v", last)
		}
	}
}
