package main

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
	"xds-server/pkg/peers"
	"xds-server/pkg/snapshot"
)

// observed is a server that was read, with one group of its own, or one that was not.
func observed(name, group string) discovery.Observation {
	o := discovery.Observation{Server: peers.Server{Name: name, Address: "10.0.0.1:6445"}, Ready: true}
	if group != "" {
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

func newTestTables(complete func() error) (*tables, *snapshot.Publisher) {
	p := snapshot.NewPublisher(zap.NewNop(), prometheus.NewRegistry())
	t := newTables(p, time.Hour, zap.NewNop())
	t.complete = complete
	return t, p
}

func tried() error { return nil }

// guarded says whether unknown APIs are answered 503.
func guarded(table string) bool { return strings.Contains(table, `"unknown"`) }

func TestNoTableBeforeEveryServerWasTried(t *testing.T) {
	pending := errors.New("not read yet: [b]")
	tt, p := newTestTables(func() error { return pending })
	tt.observe([]discovery.Observation{observed("a", "x.io"), observed("b", "")})
	if got := table(t, p, "a"); got != "" {
		t.Errorf("there is a table while a server was not tried: %s", got)
	}
	pending = nil
	tt.observe([]discovery.Observation{observed("a", "x.io"), observed("b", "y.io")})
	if got := table(t, p, "a"); !strings.Contains(got, "y.io/v1/things") {
		t.Errorf("the table lacks the peer's API: %s", got)
	}
}

func TestNoTableForANodeWhoseOwnServerWasNeverRead(t *testing.T) {
	tt, p := newTestTables(tried)
	tt.observe([]discovery.Observation{observed("a", ""), observed("b", "y.io")})
	if got := table(t, p, "a"); got != "" {
		t.Errorf("node a has a table: %s", got)
	}
	if got := table(t, p, "b"); got == "" {
		t.Error("node b has none, though its server was read")
	}
}

func TestUnknownIsNotAbsentWhileAServerIsUnread(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tt, p := newTestTables(tried)
		unread := []discovery.Observation{observed("a", "x.io"), observed("b", "")}
		tt.observe(unread)
		if !guarded(table(t, p, "a")) {
			t.Error("with an unread server an unknown API would be 404")
		}
		tt.observe([]discovery.Observation{observed("a", "x.io"), observed("b", "y.io")})
		if guarded(table(t, p, "a")) {
			t.Error("with every server read an unknown API would be 503")
		}
		tt.observe(unread)
		time.Sleep(time.Hour + time.Second)
		synctest.Wait()
		if guarded(table(t, p, "a")) {
			t.Error("a server that was not read for the time of a hold still counts")
		}
	})
}

func TestALeaseIsEvidenceOfAServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tt, p := newTestTables(tried)
		tt.observe([]discovery.Observation{observed("a", "x.io")})
		tt.evidence([]string{"host-1", "host-2"})
		if !guarded(table(t, p, "a")) {
			t.Error("with a lease of an unlisted server an unknown API would be 404")
		}
		tt.evidence([]string{"host-1"})
		if guarded(table(t, p, "a")) {
			t.Error("with every lease's server read an unknown API would be 503")
		}
		time.Sleep(2 * time.Hour) // the timers that were set end
	})
}

func TestCertificatesAreNamedByWhatTheNodesEnvoySaid(t *testing.T) {
	tt, p := newTestTables(tried)
	tt.observe([]discovery.Observation{observed("a", "x.io"), observed("b", "y.io")})
	clusters := func() string {
		r, err := p.Cache().Fetch(t.Context(), &discoveryv3.DiscoveryRequest{Node: &corev3.Node{Id: "a"}, TypeUrl: resource.ClusterType})
		if err != nil {
			t.Fatal(err)
		}
		d, err := r.GetDiscoveryResponse()
		if err != nil {
			t.Fatal(err)
		}
		return protojson.Format(d)
	}
	if got := clusters(); !strings.Contains(got, snapshot.DefaultSecretsDir+"/front-proxy.yaml") {
		t.Errorf("before its Envoy was seen, the node's clusters do not use the default directory: %s", got)
	}
	metadata, err := structpb.NewStruct(map[string]any{"secrets_dir": "/srv/envoy"})
	if err != nil {
		t.Fatal(err)
	}
	tt.connected("a", metadata)
	tt.connected("a", nil) // grpcurl
	if got := clusters(); !strings.Contains(got, "/srv/envoy/front-proxy.yaml") || strings.Contains(got, snapshot.DefaultSecretsDir) {
		t.Errorf("the node's clusters do not use the directory that its Envoy named: %s", got)
	}
}
