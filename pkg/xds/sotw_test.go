package xds

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	"google.golang.org/protobuf/proto"

	rpcstatus "google.golang.org/genproto/googleapis/rpc/status"

	"xds-server/pkg/snapshot"
)

// world is a client of the state-of-the-world stream, each step of which the test takes itself.
type world struct {
	l      *bench
	stream discoveryv3.AggregatedDiscoveryService_StreamAggregatedResourcesClient
	inbox  chan *discoveryv3.DiscoveryResponse
	stop   func()
}

func connectWorld(l *bench) *world {
	ctx, cancel := context.WithCancel(context.Background())
	stream, err := discoveryv3.NewAggregatedDiscoveryServiceClient(l.conn).StreamAggregatedResources(ctx)
	if err != nil {
		l.t.Fatal(err)
	}
	w := &world{l: l, stream: stream, inbox: make(chan *discoveryv3.DiscoveryResponse, 1000)}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for {
			resp, err := stream.Recv()
			if err != nil {
				return
			}
			w.inbox <- resp
		}
	}()
	w.stop = func() { cancel(); <-ended; synctest.Wait() }
	return w
}

func (w *world) ask(req *discoveryv3.DiscoveryRequest) {
	w.l.t.Helper()
	req.Node = &corev3.Node{Id: "a"}
	if err := w.stream.Send(req); err != nil {
		w.l.t.Fatal(err)
	}
}

// gets returns the one answer that came.
func (w *world) gets() *discoveryv3.DiscoveryResponse {
	w.l.t.Helper()
	synctest.Wait()
	if len(w.inbox) != 1 {
		w.l.t.Fatalf("%d answers", len(w.inbox))
	}
	return <-w.inbox
}

func (w *world) getsNothing() {
	w.l.t.Helper()
	synctest.Wait()
	for len(w.inbox) > 0 {
		w.l.t.Errorf("got %v", <-w.inbox)
	}
}

func (w *world) accept(resp *discoveryv3.DiscoveryResponse, names ...string) {
	w.l.t.Helper()
	w.ask(&discoveryv3.DiscoveryRequest{TypeUrl: resp.GetTypeUrl(), ResourceNames: names,
		VersionInfo: resp.GetVersionInfo(), ResponseNonce: resp.GetNonce()})
}

func (w *world) reject(resp *discoveryv3.DiscoveryResponse, good string) {
	w.l.t.Helper()
	w.ask(&discoveryv3.DiscoveryRequest{TypeUrl: resp.GetTypeUrl(), VersionInfo: good, ResponseNonce: resp.GetNonce(),
		ErrorDetail: &rpcstatus.Status{Code: 3, Message: "no good"}})
}

func clusterNames(t *testing.T, resp *discoveryv3.DiscoveryResponse) []string {
	t.Helper()
	var out []string
	for _, r := range resp.GetResources() {
		var c clusterv3.Cluster
		if err := proto.Unmarshal(r.GetValue(), &c); err != nil {
			t.Fatal(err)
		}
		out = append(out, c.GetName())
	}
	slices.Sort(out)
	return out
}

func TestARejectionOfTheWholeStateIsNotAnsweredUntilSomethingChanges(t *testing.T) {
	onBench(t, func(l *bench) {
		l.set("a", table("b"))
		w := connectWorld(l)
		w.ask(&discoveryv3.DiscoveryRequest{TypeUrl: resource.ClusterType})
		good := w.gets()
		w.accept(good)
		w.getsNothing()

		l.set("a", table("c"))
		w.reject(w.gets(), good.GetVersionInfo())
		w.getsNothing()
		l.set("a", table("c"))
		w.getsNothing()

		l.set("a", table("d"))
		if got := clusterNames(t, w.gets()); !slices.Equal(got, []string{"b", "d"}) {
			t.Errorf("after a rejection got %v, not the new table and the last good one", got)
		}
		w.stop()
	})
}

func TestTheWholeStateKeepsOldClustersUntilTheRoutesHaveChanged(t *testing.T) {
	onBench(t, func(l *bench) {
		l.set("a", table("b"))
		w := connectWorld(l)
		w.ask(&discoveryv3.DiscoveryRequest{TypeUrl: resource.ClusterType})
		w.accept(w.gets())
		w.ask(&discoveryv3.DiscoveryRequest{TypeUrl: resource.EndpointType, ResourceNames: []string{"b"}})
		w.accept(w.gets(), "b")
		w.ask(&discoveryv3.DiscoveryRequest{TypeUrl: resource.RouteType, ResourceNames: []string{snapshot.RouteName}})
		w.accept(w.gets(), snapshot.RouteName)
		w.getsNothing()
		if l.phase("a") != "synced" {
			t.Errorf("the phase is %s", l.phase("a"))
		}

		l.set("a", table("c"))
		both := w.gets()
		if got := clusterNames(t, both); !slices.Equal(got, []string{"b", "c"}) {
			t.Errorf("at first got %v", got)
		}
		endpoints := &discoveryv3.DiscoveryRequest{TypeUrl: resource.EndpointType, ResourceNames: []string{"b", "c"}, ResponseNonce: "2"}
		w.ask(endpoints)
		w.accept(both)
		more := w.gets()
		if more.GetTypeUrl() != resource.EndpointType {
			t.Fatalf("got %s before the endpoints", more.GetTypeUrl())
		}
		w.accept(more, "b", "c")
		routes := w.gets()
		if routes.GetTypeUrl() != resource.RouteType {
			t.Fatalf("got %s, not the routes", routes.GetTypeUrl())
		}
		w.getsNothing()
		w.accept(routes, snapshot.RouteName)
		if got := clusterNames(t, w.gets()); !slices.Equal(got, []string{"c"}) {
			t.Errorf("in the end got %v", got)
		}
		w.stop()
	})
}

func TestANamedResourceThatIsNotThereIsWaitedFor(t *testing.T) {
	onBench(t, func(l *bench) {
		l.set("a", table("b"))
		w := connectWorld(l)
		w.ask(&discoveryv3.DiscoveryRequest{TypeUrl: resource.EndpointType, ResourceNames: []string{"none", "later"}})
		w.getsNothing()
		l.set("a", table("b", "later"))
		if got := w.gets(); len(got.GetResources()) != 1 {
			t.Errorf("got %v", got)
		}
		w.stop()
	})
}
