package peers

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
	"go.uber.org/goleak"
	"go.uber.org/zap"
	coordinationv1 "k8s.io/api/coordination/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"xds-server/pkg/config/certtest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestAStaticListIsGivenOnceAndSorted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		var got [][]Server
		done := make(chan error)
		go func() {
			done <- Static{{Name: "b"}, {Name: "a"}}.Run(ctx, func(s []Server) { got = append(got, s) })
		}()
		synctest.Wait()
		if d := cmp.Diff([][]Server{{{Name: "a"}, {Name: "b"}}}, got); d != "" {
			t.Error(d)
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

func slice(name string, addresses ...string) *discoveryv1.EndpointSlice {
	s := &discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{Name: name}}
	for _, a := range addresses {
		s.Endpoints = append(s.Endpoints, discoveryv1.Endpoint{Addresses: []string{a}})
	}
	return s
}

func endpointSlice(names map[string]string) EndpointSlice {
	s := EndpointSlice{Port: 6445, Names: map[netip.Addr]string{}, Log: zap.NewNop(), Metrics: NewMetrics(prometheus.NewRegistry())}
	for a, n := range names {
		s.Names[netip.MustParseAddr(a)] = n
	}
	return s
}

func TestAServerIsNamedByTheConfigurationOrByItsAddress(t *testing.T) {
	s := endpointSlice(map[string]string{"10.0.0.12": "cp-2", "fd00::13": "cp-3"})
	got := s.servers([]*discoveryv1.EndpointSlice{slice("kubernetes", "10.0.0.12", "fd00:0::13", "10.0.0.11", "10.0.0.11", "fd00::14", "::ffff:10.0.0.12")})
	want := []Server{
		{Name: "10.0.0.11", Address: "10.0.0.11:6445"}, {Name: "cp-2", Address: "10.0.0.12:6445"},
		{Name: "cp-3", Address: "[fd00::13]:6445"}, {Name: "fd00::14", Address: "[fd00::14]:6445"},
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
}

func TestOnlyAddressesOfOneMachineAreTaken(t *testing.T) {
	s := endpointSlice(nil)
	got := s.servers([]*discoveryv1.EndpointSlice{slice("kubernetes",
		"0.0.0.0", "::", "224.0.0.1", "ff02::1", "255.255.255.255", "fe80::1%eth0", "example.com", "", "10.0.0.1:6443", "127.0.0.1")})
	if d := cmp.Diff([]Server{{Name: "127.0.0.1", Address: "127.0.0.1:6445"}}, got); d != "" {
		t.Error(d)
	}
}

func TestOtherSlicesOfTheServiceAddNothing(t *testing.T) {
	s := endpointSlice(nil)
	if got := s.servers([]*discoveryv1.EndpointSlice{slice("kubernetes-x7k2p", "10.0.0.66"), slice("kubernetes", "10.0.0.1")}); len(got) != 1 || got[0].Name != "10.0.0.1" {
		t.Error(got)
	}
}

func TestOneNameIsOneServerInWhateverOrderAddressesCome(t *testing.T) {
	s := endpointSlice(map[string]string{"10.0.0.1": "a", "10.0.0.2": "a"})
	for _, order := range [][]string{{"10.0.0.1", "10.0.0.2"}, {"10.0.0.2", "10.0.0.1"}} {
		if got := s.servers([]*discoveryv1.EndpointSlice{slice("kubernetes", order...)}); len(got) != 1 || got[0].Address != "10.0.0.1:6445" {
			t.Errorf("%v: %v", order, got)
		}
	}
}

func TestTheListIsBounded(t *testing.T) {
	var many []string
	for i := range 1000 {
		many = append(many, fmt.Sprintf("10.0.%d.%d", i/250, 1+i%250))
	}
	s := endpointSlice(nil)
	if got := s.servers([]*discoveryv1.EndpointSlice{slice("kubernetes", many...)}); len(got) != MaxServers {
		t.Errorf("%d servers", len(got))
	}
}

// api is an API server for one list of objects, as the client sees it: lists, and watches that end when the test says.
type api struct {
	*httptest.Server
	list func() any

	mu       sync.Mutex
	down     bool
	events   chan string // written to the open watch; "" ends it
	requests []string
}

func newAPI(t *testing.T, path string, list func() any) (*api, *rest.Config) {
	t.Helper()
	a := &api{list: list, events: make(chan string)}
	a.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		a.mu.Lock()
		down := a.down
		a.requests = append(a.requests, r.URL.Path+"?"+r.URL.RawQuery)
		a.mu.Unlock()
		w.Header().Set("Content-Type", "application/json")
		q := r.URL.Query()
		switch {
		case down:
			w.WriteHeader(http.StatusServiceUnavailable)
		case r.URL.Path != path:
			http.NotFound(w, r)
		case q.Get("sendInitialEvents") != "":
			// As a server that can't stream lists; the client then lists and watches.
			w.WriteHeader(http.StatusUnprocessableEntity)
			fmt.Fprint(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Invalid","code":422}`)
		case q.Get("watch") != "":
			_ = http.NewResponseController(w).Flush()
			for {
				select {
				case e := <-a.events:
					if e == "" {
						return
					}
					fmt.Fprintln(w, e)
					_ = http.NewResponseController(w).Flush()
				case <-r.Context().Done():
					return
				}
			}
		default:
			_ = json.NewEncoder(w).Encode(a.list())
		}
	}))
	t.Cleanup(a.Close)
	return a, &rest.Config{Host: a.URL, ContentConfig: rest.ContentConfig{ContentType: "application/json"}}
}

func (a *api) setDown(down bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.down = down
}

func (a *api) event(kind string, object any) {
	b, _ := json.Marshal(object)
	a.events <- fmt.Sprintf(`{"type":%q,"object":%s}`, kind, b)
}

// start runs f until the test ends.
func start(t *testing.T, f func(context.Context) error) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- f(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

func next[T any](t *testing.T, c <-chan T) T {
	t.Helper()
	select {
	case v := <-c:
		return v
	case <-time.After(20 * time.Second):
		t.Fatal("nothing was told")
		panic("not reached")
	}
}

func names(list []Server) string {
	var out []string
	for _, s := range list {
		out = append(out, s.Name)
	}
	return strings.Join(out, " ")
}

func TestTheClustersOwnListIsFollowedAndSurvivesItsLoss(t *testing.T) {
	object := func(addresses ...string) *discoveryv1.EndpointSlice {
		s := slice("kubernetes", addresses...)
		s.Kind, s.APIVersion, s.Namespace, s.ResourceVersion = "EndpointSlice", "discovery.k8s.io/v1", "default", "5"
		return s
	}
	var mu sync.Mutex
	current := []discoveryv1.EndpointSlice{*object("10.0.0.1", "10.0.0.2")}
	a, config := newAPI(t, "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices", func() any {
		mu.Lock()
		defer mu.Unlock()
		return discoveryv1.EndpointSliceList{TypeMeta: metav1.TypeMeta{Kind: "EndpointSliceList", APIVersion: "discovery.k8s.io/v1"},
			ListMeta: metav1.ListMeta{ResourceVersion: "5"}, Items: current}
	})
	reg := prometheus.NewRegistry()
	s := endpointSlice(nil)
	s.Client, s.Metrics = config, NewMetrics(reg)
	lists := make(chan []Server, 10)
	start(t, func(ctx context.Context) error { return s.Run(ctx, func(l []Server) { lists <- l }) })

	if got := names(next(t, lists)); got != "10.0.0.1 10.0.0.2" {
		t.Errorf("at first: %s", got)
	}
	a.event("MODIFIED", object("10.0.0.1"))
	if got := names(next(t, lists)); got != "10.0.0.1" {
		t.Errorf("after a server left: %s", got)
	}
	// Neither an object without addresses, nor its deletion, nor an API that is down says that there are no servers.
	a.event("MODIFIED", object())
	a.event("DELETED", object())
	a.setDown(true)
	a.events <- ""
	failed := func() float64 { return counter(t, reg, "xds_server_source_read_failures_total", sliceSource) }
	for end := time.Now().Add(20 * time.Second); failed() == 0 && time.Now().Before(end); {
		time.Sleep(10 * time.Millisecond)
	}
	if failed() == 0 {
		t.Error("the failure was not counted")
	}
	mu.Lock()
	current = []discoveryv1.EndpointSlice{*object("10.0.0.1", "10.0.0.3")}
	mu.Unlock()
	a.setDown(false)
	if got := names(next(t, lists)); got != "10.0.0.1 10.0.0.3" {
		t.Errorf("once it can be read again: %s", got)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, r := range a.requests {
		if !strings.Contains(r, "fieldSelector=metadata.name%3Dkubernetes") {
			t.Errorf("more than the one object was asked for: %s", r)
		}
	}
}

func counter(t *testing.T, reg *prometheus.Registry, name, source string) float64 {
	t.Helper()
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			if f.GetName() == name && m.GetLabel()[0].GetValue() == source {
				return m.GetCounter().GetValue()
			}
		}
	}
	return 0
}

func lease(name, host string, renewed time.Time, seconds int32) *coordinationv1.Lease {
	micro := metav1.NewMicroTime(renewed)
	l := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{hostnameLabel: host}}}
	l.Spec.RenewTime, l.Spec.LeaseDurationSeconds = &micro, &seconds
	return l
}

func TestALeaseTellsOfAServerWhileItIsHeld(t *testing.T) {
	now := time.Now()
	never := lease("never", "e", now, 3600)
	never.Spec.RenewTime = nil
	l := Leases{Log: zap.NewNop(), Metrics: NewMetrics(prometheus.NewRegistry())}
	got := l.hosts([]*coordinationv1.Lease{
		lease("1", "b", now.Add(-time.Minute), 3600), lease("2", "a", now, 3600), lease("3", "a", now, 3600),
		lease("4", "c", now.Add(-2*time.Hour), 3600), lease("5", "d", now, 0), never, lease("6", "Not_A Host", now, 3600),
	}, now)
	if !slices.Equal(got, []string{"a", "b"}) {
		t.Error(got)
	}
}

func TestALeaseThatIsNotRenewedEndsWithoutAnEvent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		l := Leases{Log: zap.NewNop(), Metrics: NewMetrics(prometheus.NewRegistry())}
		updates := make(chan []*coordinationv1.Lease)
		var got []string
		done := make(chan struct{})
		go func() {
			defer close(done)
			l.follow(ctx, updates, func(hosts []string) { got = append(got, strings.Join(hosts, " ")) })
		}()
		time.Sleep(5 * time.Minute)
		synctest.Wait()
		if len(got) != 0 {
			t.Errorf("told before anything was read: %q", got)
		}
		now := time.Now()
		updates <- []*coordinationv1.Lease{lease("1", "a", now, 3600), lease("2", "b", now.Add(-59*time.Minute), 3600)}
		time.Sleep(10 * time.Minute)
		synctest.Wait()
		if !slices.Equal(got, []string{"a b", "a"}) {
			t.Errorf("got %q", got)
		}
		cancel()
		<-done
	})
}

func TestOnlyIdentityLeasesAreRead(t *testing.T) {
	a, config := newAPI(t, "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases", func() any {
		l := lease("apiserver-x", "cp-1", time.Now(), 3600)
		l.Annotations = map[string]string{"kubernetes.io/address": "10.6.6.6"}
		return coordinationv1.LeaseList{TypeMeta: metav1.TypeMeta{Kind: "LeaseList", APIVersion: "coordination.k8s.io/v1"},
			ListMeta: metav1.ListMeta{ResourceVersion: "5"}, Items: []coordinationv1.Lease{*l}}
	})
	l := Leases{Client: config, Log: zap.NewNop(), Metrics: NewMetrics(prometheus.NewRegistry())}
	hosts := make(chan []string, 10)
	start(t, func(ctx context.Context) error { return l.Run(ctx, func(h []string) { hosts <- h }) })
	if got := next(t, hosts); !slices.Equal(got, []string{"cp-1"}) {
		t.Errorf("got %v", got)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, r := range a.requests {
		if !strings.Contains(r, "labelSelector=apiserver.kubernetes.io%2Fidentity%3Dkube-apiserver") {
			t.Errorf("more than identity leases was asked for: %s", r)
		}
	}
}

func TestAKubeconfigThatCannotBeReadIsNamed(t *testing.T) {
	if _, err := ClientConfig("/none/kubeconfig"); err == nil || !strings.Contains(err.Error(), "/none/kubeconfig") {
		t.Errorf("got %v", err)
	}
	t.Setenv("KUBERNETES_SERVICE_HOST", "")
	if _, err := ClientConfig(""); err == nil || !strings.Contains(err.Error(), "endpointSlice.kubeconfig") {
		t.Errorf("got %v", err)
	}
}

func TestAKubeconfigThatIsMoreThanAReadersIsRefused(t *testing.T) {
	ca := certtest.NewCA(t, "kubernetes")
	for name, tt := range map[string]struct {
		user string
		want string
	}{
		"an administrator": {kubeconfigUser(ca.Issue("admin", certtest.Organization("kubeadm:cluster-admins"))), "kubeadm:cluster-admins"},
		"impersonation":    {`{"token":"t","as":"admin"}`, "admin"},
		"a reader":         {kubeconfigUser(ca.Issue("system:xds-server")), ""},
		"a token":          {`{"token":"t"}`, ""},
	} {
		file := certtest.Write(t, t.TempDir(), "kubeconfig", []byte(`{"apiVersion":"v1","kind":"Config","current-context":"c",
			"clusters":[{"name":"c","cluster":{"server":"https://127.0.0.1:1"}}],"contexts":[{"name":"c","context":{"cluster":"c","user":"c"}}],
			"users":[{"name":"c","user":`+tt.user+`}]}`))
		_, err := ClientConfig(file)
		if (err == nil) != (tt.want == "") || err != nil && (!strings.Contains(err.Error(), tt.want) || !strings.Contains(err.Error(), file)) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func kubeconfigUser(cert, key []byte) string {
	b64 := base64.StdEncoding.EncodeToString
	return `{"client-certificate-data":"` + b64(cert) + `","client-key-data":"` + b64(key) + `"}`
}

func TestMetricNamesAreGood(t *testing.T) {
	reg := prometheus.NewRegistry()
	NewMetrics(reg)
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	if problems, err := promlint.NewWithMetricFamilies(families).Lint(); err != nil || len(problems) != 0 {
		t.Errorf("%v %v", problems, err)
	}
}
