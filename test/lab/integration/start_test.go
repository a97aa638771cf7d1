package integration

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"slices"
	"testing"
	"time"

	auditv1 "k8s.io/apiserver/pkg/apis/audit/v1"

	"xds-server/test/lab"
)

// newGroup is served by 1.37 and by no server before it.
const newGroup = "/apis/storagemigration.k8s.io/v1"

func TestLabStartsTwoVersions(t *testing.T) {
	l, err := lab.New(lab.Config{Nodes: []lab.NodeConfig{
		{Name: "old", Version: lab.Kube136},
		{Name: "new", Version: lab.Kube137},
	}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	ctx, cancel := context.WithTimeout(t.Context(), 2*lab.StartTimeout)
	defer cancel()
	begin := time.Now()
	if err := l.Start(ctx); err != nil {
		t.Fatal(err)
	}
	t.Logf("etcd and two kube-apiservers were ready after %s", time.Since(begin).Round(100*time.Millisecond))
	older, newer := l.Node("old"), l.Node("new")

	t.Run("each serves its own version's APIs", func(t *testing.T) {
		for _, p := range []lab.Protocol{lab.HTTP1, lab.HTTP2} {
			wantStatus(t, l, older, p, newGroup, http.StatusNotFound)
			wantStatus(t, l, newer, p, newGroup, http.StatusOK)
		}
	})
	t.Run("the kubernetes EndpointSlice lists both nodes", func(t *testing.T) {
		wantList(t, l, older, "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices/kubernetes",
			[]string{older.IP, newer.IP}, func(b []byte) []string {
				var slice struct {
					Endpoints []struct{ Addresses []string }
				}
				mustDecode(t, b, &slice)
				var found []string
				for _, e := range slice.Endpoints {
					found = append(found, e.Addresses...)
				}
				return found
			})
	})
	t.Run("each has an identity lease under its own hostname", func(t *testing.T) {
		wantList(t, l, older, "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases?labelSelector=apiserver.kubernetes.io/identity=kube-apiserver",
			[]string{"new", "old"}, func(b []byte) []string {
				var leases struct {
					Items []struct {
						Metadata struct{ Labels map[string]string }
					}
				}
				mustDecode(t, b, &leases)
				var found []string
				for _, i := range leases.Items {
					found = append(found, i.Metadata.Labels["kubernetes.io/hostname"])
				}
				return found
			})
	})
	t.Run("a request is found in the audit log of its server", func(t *testing.T) {
		uri := "/api/v1/namespaces?limit=1"
		call(t, l, older, l.Token("bob"), uri)
		event, err := older.WaitAudit(ctx, func(e *auditv1.Event) bool { return e.RequestURI == uri })
		if err != nil {
			t.Fatal(err)
		}
		if u := event.User; u.Username != "bob" || u.UID != "uid-bob" || !slices.Contains(u.Groups, "lab:readers") {
			t.Errorf("the audit log names %+v", u)
		}
	})
	t.Run("users have the rights they are said to have", func(t *testing.T) {
		for user, want := range map[string]int{"admin": 200, "alice": 200, "bob": 200, "nobody": 403} {
			if a := call(t, l, newer, l.Token(user), "/api/v1/nodes"); a.Status != want {
				t.Errorf("%s lists nodes: %d, want %d", user, a.Status, want)
			}
		}
		cert, err := l.NewClientCertificate(lab.XDSServerUser)
		if err != nil {
			t.Fatal(err)
		}
		for path, want := range map[string]int{
			"/apis": 200, "/readyz": 200, "/openapi/v3": 200,
			"/apis/discovery.k8s.io/v1/namespaces/default/endpointslices?fieldSelector=metadata.name%3Dkubernetes": 200,
			"/apis/discovery.k8s.io/v1/namespaces/default/endpointslices/kubernetes":                               200,
			"/apis/discovery.k8s.io/v1/namespaces/default/endpointslices":                                          403,
			"/apis/coordination.k8s.io/v1/namespaces/kube-system/leases":                                           200,
			"/apis/coordination.k8s.io/v1/namespaces/default/leases":                                               403,
			"/api/v1/namespaces/kube-system/secrets":                                                               403,
			"/apis/discovery.k8s.io/v1/namespaces/kube-node-lease/endpointslices":                                  403,
		} {
			if a := call(t, l, newer, cert, path); a.Status != want {
				t.Errorf("xds-server gets %s: %d, want %d", path, a.Status, want)
			}
		}
	})
	t.Run("kubectl works with a kubeconfig", func(t *testing.T) {
		kubeconfig, err := l.Kubeconfig(newer.DirectURL(), l.Token("alice"))
		if err != nil {
			t.Fatal(err)
		}
		out, err := l.Kubectl(ctx, lab.Kube137, kubeconfig, "auth", "whoami", "-o", "jsonpath={.status.userInfo.username}").CombinedOutput()
		if err != nil || string(out) != "alice" {
			t.Errorf("kubectl says %q (%v)", out, err)
		}
	})
	t.Run("a paused server keeps its clients waiting", func(t *testing.T) {
		if err := older.Server.Pause(); err != nil {
			t.Fatal(err)
		}
		short, cancel := context.WithTimeout(ctx, 300*time.Millisecond)
		defer cancel()
		if a, err := lab.Call(short, l.Client(l.Admin(), lab.HTTP1), http.MethodGet, older.DirectURL()+"/livez", "", nil); err == nil {
			t.Errorf("it answered %d", a.Status)
		}
		if err := older.Server.Resume(); err != nil {
			t.Fatal(err)
		}
		wantStatus(t, l, older, lab.HTTP1, "/livez", http.StatusOK)
	})
	t.Run("a server restarted at the newer version serves its APIs", func(t *testing.T) {
		begin := time.Now()
		if err := older.Server.Restart(ctx, lab.Kube137); err != nil {
			t.Fatal(err)
		}
		t.Logf("restarted in %s", time.Since(begin).Round(100*time.Millisecond))
		wantStatus(t, l, older, lab.HTTP2, newGroup, http.StatusOK)
	})
	t.Run("nothing is left after Close", func(t *testing.T) {
		pids := map[string]int{}
		for _, p := range []*lab.Process{l.Etcd, older.Server.Process, newer.Server.Process} {
			if !p.Running() {
				t.Errorf("%s does not even run", p.Name)
			}
			pids[p.Name] = p.PID()
		}
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
		for name, pid := range pids {
			wantGone(t, name, fmt.Sprintf("/proc/%d", pid))
		}
		wantGone(t, "the lab's directory", l.Dir)
	})
}

func call(t *testing.T, l *lab.Lab, n *lab.Node, c lab.Credential, path string) *lab.Answer {
	t.Helper()
	client := l.Client(c, lab.HTTP2)
	defer client.CloseIdleConnections()
	a, err := lab.Call(t.Context(), client, http.MethodGet, n.DirectURL()+path, "", nil)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func wantStatus(t *testing.T, l *lab.Lab, n *lab.Node, p lab.Protocol, path string, want int) {
	t.Helper()
	a, err := lab.Call(t.Context(), l.Client(l.Token("nobody"), p), http.MethodGet, n.DirectURL()+path, "", nil)
	if err != nil {
		t.Fatal(err)
	}
	if a.Status != want {
		t.Errorf("%s at the %s server over %s: %d, want %d: %s", path, n.Name, a.Proto, a.Status, want, a.Body)
	}
}

// wantList polls a document until it lists what it should: servers write about
// themselves some time after they are ready.
func wantList(t *testing.T, l *lab.Lab, n *lab.Node, path string, want []string, read func([]byte) []string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	slices.Sort(want)
	for {
		found := read(call(t, l, n, l.Admin(), path).Body)
		slices.Sort(found)
		if slices.Equal(found, want) {
			return
		}
		select {
		case <-ctx.Done():
			t.Fatalf("found %q, want %q", found, want)
		case <-tick.C:
		}
	}
}

func mustDecode(t *testing.T, b []byte, v any) {
	t.Helper()
	if err := json.Unmarshal(b, v); err != nil {
		t.Fatalf("%v in %s", err, b)
	}
}

func wantGone(t *testing.T, what, path string) {
	t.Helper()
	if _, err := os.Stat(path); !os.IsNotExist(err) {
		t.Errorf("%s is still there (%v)", what, err)
	}
}
