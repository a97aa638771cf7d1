package snapshot

import (
	"strings"
	"testing"

	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"xds-server/pkg/peers"
	"xds-server/pkg/routing"
)

// compiled is a table as the program makes it.
func compiled(t *testing.T) Resources {
	t.Helper()
	r, err := Compile(routing.Table{
		Node: "a", Default: routing.Set{Local: true, Peers: []string{"b", "c"}},
		Entries: []routing.Entry{{Key: routing.Key{Group: "apps", Version: "v9", Resource: "things"}, Set: routing.Set{Peers: []string{"b"}}}},
	}, map[string]Peer{
		"b": {Server: peers.Server{Name: "b", Address: "10.0.0.2:6445"}, Ready: true},
		"c": {Server: peers.Server{Name: "c", Address: "10.0.0.3:6445"}},
	}, DefaultSecretsDir)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func TestWhatCompileMakesCanBePublished(t *testing.T) {
	p := NewPublisher(zap.NewNop(), prometheus.NewRegistry())
	if err := p.Set("a", compiled(t)); err != nil {
		t.Error(err)
	}
}

func TestEqualResourcesHaveEqualVersionsWhereverTheyAreMade(t *testing.T) {
	one, err := newTable(compiled(t), nil)
	if err != nil {
		t.Fatal(err)
	}
	two, err := newTable(compiled(t), nil)
	if err != nil {
		t.Fatal(err)
	}
	if one.versions != two.versions {
		t.Errorf("%v and %v", one.versions, two.versions)
	}
}

func TestAnInvalidRouteDeepInTheMatcherTreeIsFound(t *testing.T) {
	r := compiled(t)
	deep, err := onMatch(&routev3.Route{Action: &routev3.Route_Route{Route: &routev3.RouteAction{}}})
	if err != nil {
		t.Fatal(err)
	}
	r.Routes[0].VirtualHosts[0].Matcher.OnNoMatch = deep
	p := NewPublisher(zap.NewNop(), prometheus.NewRegistry())
	err = p.Set("a", r)
	if err == nil || !strings.Contains(err.Error(), `route "front"`) || strings.Contains(err.Error(), "\n") {
		t.Errorf("got %v", err)
	}
	if got := p.Status(); len(got) != 0 {
		t.Errorf("a refused table left %v", got)
	}
}
