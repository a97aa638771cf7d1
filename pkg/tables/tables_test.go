package tables

import (
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/types/known/structpb"
	apidiscoveryv2 "k8s.io/api/apidiscovery/v2"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"

	"xds-server/pkg/discovery"
	"xds-server/pkg/documents"
	"xds-server/pkg/peers"
	"xds-server/pkg/snapshot"
)

// observed is a server that was read, with one group of its own, or one that was not.
func observed(name, group string) discovery.Observation {
	o := discovery.Observation{Server: peers.Server{Name: name, Address: "10.0.0.1:6445"}, Ready: true}
	if group != "" {
		o.Read = time.Now()
		o.View = &discovery.View{Groups: []apidiscoveryv2.APIGroupDiscovery{{
			ObjectMeta: metav1.ObjectMeta{Name: group},
			Versions: []apidiscoveryv2.APIVersionDiscovery{{
				Version: "v1", Resources: []apidiscoveryv2.APIResourceDiscovery{{Resource: "things"}},
			}},
		}}}
	}
	return o
}

// table is what a node's Envoy would be given, as text; empty while there is none.
func table(t *testing.T, p *snapshot.Publisher, node string) string {
	t.Helper()
	r, err := p.Cache().Fetch(t.Context(), &discoveryv3.DiscoveryRequest{
		Node: &corev3.Node{Id: node}, TypeUrl: resource.RouteType, ResourceNames: []string{snapshot.RouteName},
	})
	if err != nil {
		return ""
	}
	d, err := r.GetDiscoveryResponse()
	if err != nil {
		t.Fatal(err)
	}
	if len(d.GetResources()) == 0 {
		return ""
	}
	var routes routev3.RouteConfiguration
	if err := d.GetResources()[0].UnmarshalTo(&routes); err != nil {
		t.Fatal(err)
	}
	return protojson.Format(&routes)
}

func newTestTables(complete func() error) (*Tables, *snapshot.Publisher) {
	reg := prometheus.NewRegistry()
	p := snapshot.NewPublisher(zap.NewNop(), reg)
	return New(p, complete, time.Hour, zap.NewNop(), reg), p
}

func tried() error { return nil }

// guarded says whether unknown APIs are answered 503.
func guarded(table string) bool { return strings.Contains(table, `"unknown"`) }

func TestNoTableBeforeEveryServerWasTried(t *testing.T) {
	pending := errors.New("not read yet: [b]")
	tt, p := newTestTables(func() error { return pending })
	tt.Observe([]discovery.Observation{observed("a", "x.io"), observed("b", "")})
	if got := table(t, p, "a"); got != "" {
		t.Errorf("there is a table while a server was not tried: %s", got)
	}
	pending = nil
	tt.Observe([]discovery.Observation{observed("a", "x.io"), observed("b", "y.io")})
	if got := table(t, p, "a"); !strings.Contains(got, "y.io/v1/things") {
		t.Errorf("the table lacks the peer's API: %s", got)
	}
}

func TestNoTableForANodeWhoseOwnServerWasNeverRead(t *testing.T) {
	tt, p := newTestTables(tried)
	tt.Observe([]discovery.Observation{observed("a", ""), observed("b", "y.io")})
	if got := table(t, p, "a"); got != "" {
		t.Errorf("node a has a table: %s", got)
	}
	if got := table(t, p, "b"); got == "" {
		t.Error("node b has none, though its server was read")
	}
}

func TestUnknownIsNotAbsentWhileAServerIsUnread(t *testing.T) {
	tt, p := newTestTables(tried)
	unread, expired := observed("b", ""), observed("b", "")
	expired.Expired = true
	for _, step := range []struct {
		what string
		b    *discovery.Observation
		want bool
	}{
		{"a server is listed and was not read", &unread, true},
		{"every server was read", ptr(observed("b", "y.io")), false},
		{"a server was not read for the time of a hold", &expired, false},
		{"a server is listed again", &unread, true},
		{"it is forgotten", nil, false},
	} {
		list := []discovery.Observation{observed("a", "x.io")}
		if step.b != nil {
			list = append(list, *step.b)
		}
		tt.Observe(list)
		if guarded(table(t, p, "a")) != step.want {
			t.Errorf("when %s, an unknown API is answered 503: %v", step.what, !step.want)
		}
	}
}

func ptr[T any](v T) *T { return &v }

func TestANodeKeepsItsTableWhileItsServerIsAway(t *testing.T) {
	tt, p := newTestTables(tried)
	tt.Observe([]discovery.Observation{observed("a", "x.io"), observed("b", "y.io")})
	away := observed("a", "x.io")
	away.View, away.Expired = nil, true
	tt.Observe([]discovery.Observation{away, observed("b", "z.io")})
	if got := table(t, p, "a"); !strings.Contains(got, "local+b") {
		t.Errorf("the front of a server that is past its hold does not lead to its peers: %s", got)
	}
}

func TestAForgottenNodeLosesItsTable(t *testing.T) {
	tt, p := newTestTables(tried)
	tt.Observe([]discovery.Observation{observed("a", "x.io"), observed("b", "y.io")})
	tt.Observe([]discovery.Observation{observed("a", "x.io")})
	if got := table(t, p, "b"); got != "" {
		t.Errorf("it still has one: %s", got)
	}
}

func TestALeaseIsEvidenceOfAServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tt, p := newTestTables(tried)
		tt.Observe([]discovery.Observation{observed("a", "x.io")})
		tt.Evidence([]string{"host-1", "host-2"})
		if !guarded(table(t, p, "a")) {
			t.Error("with a lease of an unlisted server an unknown API would be 404")
		}
		tt.Evidence([]string{"host-1"})
		if guarded(table(t, p, "a")) {
			t.Error("with every lease's server read an unknown API would be 503")
		}
		tt.Evidence([]string{"host-1", "host-2"})
		time.Sleep(time.Hour + time.Second)
		synctest.Wait()
		if guarded(table(t, p, "a")) {
			t.Error("a server that is not listed for the time of a hold still counts")
		}
	})
}

func TestTheLeaseOfAServerThatIsForgottenTellsNothingNew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tt, p := newTestTables(tried)
		tt.Evidence([]string{"host-1", "host-2"})
		tt.Observe([]discovery.Observation{observed("a", "x.io"), observed("b", "y.io")})
		time.Sleep(time.Hour)
		tt.Observe([]discovery.Observation{observed("a", "x.io")})
		if guarded(table(t, p, "a")) {
			t.Error("a server whose hold is over counts for another one")
		}
	})
}

func TestDocumentsFollowWhoIsThere(t *testing.T) {
	tt, _ := newTestTables(tried)
	compiled := 0
	tt.OnDocuments(func(*documents.Set, bool) { compiled++ })
	a, b := observed("a", "x.io"), observed("b", "y.io")
	unready, gone := b, b
	unready.Ready = false
	gone.Gone = true
	for i, second := range []discovery.Observation{b, unready, gone, b} {
		for range 2 {
			tt.Observe([]discovery.Observation{a, second})
		}
		if compiled != i+1 {
			t.Fatalf("compiled %d times after change %d", compiled, i)
		}
	}
}

func TestCertificatesAreNamedByWhatTheNodesEnvoySaid(t *testing.T) {
	tt, p := newTestTables(tried)
	early, err := structpb.NewStruct(map[string]any{"secrets_dir": "/srv/early"})
	if err != nil {
		t.Fatal(err)
	}
	tt.Connected("b", early) // before its server is listed
	tt.Observe([]discovery.Observation{observed("a", "x.io"), observed("b", "y.io")})
	clusters := func(node string) string {
		r, err := p.Cache().Fetch(t.Context(), &discoveryv3.DiscoveryRequest{Node: &corev3.Node{Id: node}, TypeUrl: resource.ClusterType})
		if err != nil {
			t.Fatal(err)
		}
		d, err := r.GetDiscoveryResponse()
		if err != nil {
			t.Fatal(err)
		}
		return protojson.Format(d)
	}
	if got := clusters("a"); !strings.Contains(got, snapshot.DefaultSecretsDir+"/front-proxy.yaml") {
		t.Errorf("before its Envoy was seen, the node's clusters do not use the default directory: %s", got)
	}
	if got := clusters("b"); !strings.Contains(got, "/srv/early/front-proxy.yaml") {
		t.Errorf("an Envoy that connected before its server was listed has clusters that do not use its directory: %s", got)
	}
	metadata, err := structpb.NewStruct(map[string]any{"secrets_dir": "/srv/envoy"})
	if err != nil {
		t.Fatal(err)
	}
	tt.Connected("a", metadata)
	tt.Connected("a", nil) // grpcurl
	if got := clusters("a"); !strings.Contains(got, "/srv/envoy/front-proxy.yaml") || strings.Contains(got, snapshot.DefaultSecretsDir) {
		t.Errorf("the node's clusters do not use the directory that its Envoy named: %s", got)
	}
}
