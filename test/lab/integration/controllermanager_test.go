package integration

import (
	"context"
	"fmt"
	"net/http"
	"testing"
	"time"

	"xds-server/test/lab"
)

// A namespace that comes with its ServiceAccount, and goes whole, shows that its controllers work.
func TestAControllerManagerWorksForItsCluster(t *testing.T) {
	l := lab.ForTest(t, lab.Config{Nodes: []lab.NodeConfig{{Name: "one", Version: lab.Kube136}}})
	node := l.Node("one")
	manager, err := node.ControllerManager(lab.Kube136, node.DirectURL())
	if err != nil {
		t.Fatal(err)
	}
	if err := manager.Start(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	if err := manager.WaitReady(ctx); err != nil {
		t.Fatalf("%v\n%s", err, manager.LogTail(20))
	}

	client := l.Client(l.Admin(), lab.HTTP2)
	namespaces := node.DirectURL() + "/api/v1/namespaces"
	status := func(want int, method, url, body string) error {
		a, err := lab.Call(ctx, client, method, url, body, nil)
		if err == nil && a.Status != want {
			err = fmt.Errorf("%s %s answered %d: %s", method, url, a.Status, a.Body)
		}
		return err
	}
	if err := status(http.StatusCreated, "POST", namespaces, `{"metadata":{"name":"managed"}}`); err != nil {
		t.Fatal(err)
	}
	eventually(ctx, t, func() error { return status(http.StatusOK, "GET", namespaces+"/managed/serviceaccounts/default", "") })
	if err := status(http.StatusOK, "DELETE", namespaces+"/managed", ""); err != nil {
		t.Fatal(err)
	}
	eventually(ctx, t, func() error { return status(http.StatusNotFound, "GET", namespaces+"/managed", "") })
}

func eventually(ctx context.Context, t *testing.T, ask func() error) {
	t.Helper()
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for {
		err := ask()
		if err == nil {
			return
		}
		select {
		case <-ctx.Done():
			t.Fatal(err)
		case <-tick.C:
		}
	}
}
