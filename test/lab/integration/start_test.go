// Package integration proves on real processes what package lab promises.
package integration

import (
	"context"
	"net/http"
	"os"
	"strconv"
	"testing"
	"time"

	"xds-server/test/lab"
)

func TestMain(m *testing.M) {
	lab.Main(m, lab.Etcd, lab.KubeAPIServer(lab.Kube136), lab.KubeAPIServer(lab.Kube137))
}

func TestLabStartsTwoVersions(t *testing.T) {
	l, err := lab.New(lab.Config{Nodes: []lab.NodeConfig{
		{Name: "old", Version: lab.Kube136},
		{Name: "new", Version: lab.Kube137},
	}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	ctx, cancel := context.WithTimeout(t.Context(), lab.StartTimeout)
	defer cancel()
	begin := time.Now()
	if err := l.Start(ctx); err != nil {
		t.Fatal(err)
	}
	t.Logf("etcd and two kube-apiservers were ready after %s", time.Since(begin).Round(100*time.Millisecond))

	for _, c := range []struct {
		node string
		want int
	}{{"old", http.StatusNotFound}, {"new", http.StatusOK}} {
		for _, p := range []lab.Protocol{lab.HTTP1, lab.HTTP2} {
			url := l.Node(c.node).DirectURL() + "/apis/storagemigration.k8s.io/v1"
			a, err := lab.Call(ctx, l.Client(l.Token("nobody"), p), http.MethodGet, url, "", nil)
			if err != nil {
				t.Fatal(err)
			}
			if a.Status != c.want {
				t.Errorf("storagemigration.k8s.io/v1 at the %s server over %s: %d, want %d: %s", c.node, a.Proto, a.Status, c.want, a.Body)
			}
		}
	}

	pids := map[string]int{
		l.Etcd.Name:               l.Etcd.PID(),
		l.Node("old").Server.Name: l.Node("old").Server.PID(),
		l.Node("new").Server.Name: l.Node("new").Server.PID(),
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	for name, pid := range pids {
		if _, err := os.Stat("/proc/" + strconv.Itoa(pid)); !os.IsNotExist(err) {
			t.Errorf("%s, process %d, is still there after Close (%v)", name, pid, err)
		}
	}
	if _, err := os.Stat(l.Dir); !os.IsNotExist(err) {
		t.Errorf("%s is still there after Close (%v)", l.Dir, err)
	}
}
