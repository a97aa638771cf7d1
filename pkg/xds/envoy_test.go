package xds

import (
	"context"
	"fmt"
	"maps"
	"net"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	runtimev3 "github.com/envoyproxy/go-control-plane/envoy/service/runtime/v3"
	"github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"
	"go.uber.org/zap/zaptest"
	rpcstatus "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/test/bufconn"

	"xds-server/pkg/snapshot"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// bench is the real gRPC server on an in-memory listener, inside of a synctest bubble: time stands still while anything
// runs, so that "nothing was sent" can be seen, and five seconds cost nothing.
type bench struct {
	t         *testing.T
	publisher *snapshot.Publisher
	metrics   *prometheus.Registry
	conn      *grpc.ClientConn
	stop      func()
}

// onBench runs the test with a server.
func onBench(t *testing.T, test func(l *bench)) {
	synctest.Test(t, func(t *testing.T) {
		l := newBench(t)
		test(l)
		l.stop()
	})
}

// newBench starts a server. It is a new one in every sense: a second bench is an xds-server after a restart.
func newBench(t *testing.T) *bench {
	log := zaptest.NewLogger(t)
	l := &bench{t: t, metrics: prometheus.NewRegistry()}
	l.publisher = snapshot.NewPublisher(log, l.metrics)
	buffer := bufconn.Listen(1 << 20)
	server := &Server{config: Config{Publisher: l.publisher, Log: log}, listeners: []listener{{Listener: buffer}}}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error)
	go func() { done <- server.Run(ctx) }()
	var err error
	l.conn, err = grpc.NewClient("passthrough:bench", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return buffer.DialContext(ctx) }))
	if err != nil {
		t.Fatal(err)
	}
	l.stop = func() {
		_ = l.conn.Close()
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		synctest.Wait()
	}
	return l
}

func (l *bench) set(node string, r snapshot.Resources) {
	l.t.Helper()
	if err := l.publisher.Set(node, r); err != nil {
		l.t.Fatal(err)
	}
	synctest.Wait()
}

// phase is the phase of the node's first stream.
func (l *bench) phase(node string) string {
	for _, n := range l.publisher.Status() {
		if n.Node == node && len(n.Streams) > 0 {
			return n.Streams[0].Phase
		}
	}
	return "not connected"
}

// envoy behaves on its delta stream as Envoy does. It fails the test if ever a route names a cluster that it does not
// have, or a cluster that a route names has no endpoints.
type envoy struct {
	t      *testing.T
	name   string
	stream discoveryv3.AggregatedDiscoveryService_DeltaAggregatedResourcesClient
	cancel func()
	// has is by type and name; it survives the stream.
	has map[string]map[string]*discoveryv3.Resource
	// said is everything that it was told, one line for each response.
	said []string
	// refuses says why it rejects a resource.
	refuses map[string]string
	// silent Envoys neither accept nor reject.
	silent bool
	// late are lines to which its requests are still on their way, owed are those requests.
	late  map[string]bool
	owed  []*discoveryv3.DeltaDiscoveryRequest
	inbox chan *discoveryv3.DeltaDiscoveryResponse
}

var short = map[string]string{
	resource.ClusterType: "clusters", resource.EndpointType: "endpoints", resource.RouteType: "routes", resource.RuntimeType: "runtime",
}

func newEnvoy(t *testing.T, name string) *envoy {
	return &envoy{t: t, name: name, refuses: map[string]string{}, has: map[string]map[string]*discoveryv3.Resource{
		resource.ClusterType: {}, resource.EndpointType: {}, resource.RouteType: {}, resource.RuntimeType: {},
	}}
}

// connect opens a stream and subscribes in the order in which a real Envoy does: an Envoy that starts asks for its
// routes only after its clusters came.
func (e *envoy) connect(l *bench) {
	e.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	stream, err := discoveryv3.NewAggregatedDiscoveryServiceClient(l.conn).DeltaAggregatedResources(ctx)
	if err != nil {
		e.t.Fatal(err)
	}
	inbox := make(chan *discoveryv3.DeltaDiscoveryResponse, 100)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		defer close(inbox)
		for {
			resp, err := stream.Recv()
			if err != nil {
				return
			}
			inbox <- resp
		}
	}()
	e.stream, e.inbox = stream, inbox
	e.cancel = func() { cancel(); <-ended; synctest.Wait() }
	e.send(&discoveryv3.DeltaDiscoveryRequest{
		Node:    &corev3.Node{Id: e.name},
		TypeUrl: resource.RuntimeType, ResourceNamesSubscribe: []string{snapshot.RuntimeName},
		InitialResourceVersions: e.versions(resource.RuntimeType),
	})
	e.send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: resource.ClusterType, InitialResourceVersions: e.versions(resource.ClusterType)})
	if names := slices.Sorted(maps.Keys(e.has[resource.ClusterType])); len(names) > 0 {
		e.send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: resource.EndpointType, ResourceNamesSubscribe: names,
			InitialResourceVersions: e.versions(resource.EndpointType)})
	}
	e.send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: resource.RouteType, ResourceNamesSubscribe: []string{snapshot.RouteName},
		InitialResourceVersions: e.versions(resource.RouteType)})
	e.live()
}

func (e *envoy) send(req *discoveryv3.DeltaDiscoveryRequest) {
	e.t.Helper()
	if err := e.stream.Send(req); err != nil {
		e.t.Fatal(err)
	}
}

func (e *envoy) versions(typeURL string) map[string]string {
	out := map[string]string{}
	for name, r := range e.has[typeURL] {
		out[name] = r.GetVersion()
	}
	return out
}

// live lets the Envoy answer until nothing comes any more.
func (e *envoy) live() {
	e.t.Helper()
	for {
		synctest.Wait()
		select {
		case resp, ok := <-e.inbox:
			if !ok {
				return
			}
			e.take(resp)
		default:
			return
		}
	}
}

func (e *envoy) take(resp *discoveryv3.DeltaDiscoveryResponse) {
	e.t.Helper()
	typeURL := resp.GetTypeUrl()
	line := short[typeURL]
	reason := ""
	for _, r := range resp.GetResources() {
		line += " +" + r.GetName()
		reason += e.refuses[r.GetName()+"@"+r.GetVersion()] + e.refuses[r.GetName()]
	}
	for _, name := range resp.GetRemovedResources() {
		line += " -" + name
	}
	if reason != "" {
		line += " rejected"
	}
	e.said = append(e.said, line)
	if e.silent {
		return
	}
	ack := &discoveryv3.DeltaDiscoveryRequest{TypeUrl: typeURL, ResponseNonce: resp.GetNonce()}
	if reason != "" {
		ack.ErrorDetail = &rpcstatus.Status{Code: 3, Message: reason}
		e.send(ack)
		return
	}
	var added []string
	var requests []*discoveryv3.DeltaDiscoveryRequest
	for _, r := range resp.GetResources() {
		if e.has[typeURL][r.GetName()] == nil {
			added = append(added, r.GetName())
		}
		e.has[typeURL][r.GetName()] = r
	}
	for _, name := range resp.GetRemovedResources() {
		delete(e.has[typeURL], name)
	}
	if typeURL == resource.ClusterType && len(added)+len(resp.GetRemovedResources()) > 0 {
		requests = append(requests, &discoveryv3.DeltaDiscoveryRequest{TypeUrl: resource.EndpointType, ResourceNamesSubscribe: added,
			ResourceNamesUnsubscribe: resp.GetRemovedResources()})
		for _, name := range resp.GetRemovedResources() {
			delete(e.has[resource.EndpointType], name)
		}
	}
	e.check(line)
	requests = append(requests, ack)
	if e.late[line] {
		e.owed = append(e.owed, requests...)
		return
	}
	for _, req := range requests {
		e.send(req)
	}
}

// arrive lets the first n requests that are on their way arrive.
func (e *envoy) arrive(n int) {
	e.t.Helper()
	for _, req := range e.owed[:n] {
		e.send(req)
	}
	e.owed = e.owed[n:]
}

// check is the promise: no request ever finds a route without its cluster, or a cluster without endpoints.
func (e *envoy) check(after string) {
	e.t.Helper()
	for _, name := range e.routed() {
		if e.has[resource.ClusterType][name] == nil {
			e.t.Errorf("after %q a route names cluster %s, which this Envoy does not have", after, name)
		}
		if e.has[resource.EndpointType][name] == nil {
			e.t.Errorf("after %q a route names cluster %s, which has no endpoints", after, name)
		}
	}
	if len(e.routed()) == 0 && e.ready() == 100 {
		e.t.Errorf("after %q this Envoy is ready without routes", after)
	}
}

// routed are the clusters that the routes name.
func (e *envoy) routed() []string {
	e.t.Helper()
	r := e.has[resource.RouteType][snapshot.RouteName]
	if r == nil {
		return nil
	}
	var rc routev3.RouteConfiguration
	if err := r.GetResource().UnmarshalTo(&rc); err != nil {
		e.t.Fatal(err)
	}
	var out []string
	for _, r := range rc.GetVirtualHosts()[0].GetRoutes() {
		out = append(out, r.GetRoute().GetCluster())
	}
	return out
}

// ready is the runtime key's value, -1 without one.
func (e *envoy) ready() float64 {
	e.t.Helper()
	r := e.has[resource.RuntimeType][snapshot.RuntimeName]
	if r == nil {
		return -1
	}
	var rt runtimev3.Runtime
	if err := r.GetResource().UnmarshalTo(&rt); err != nil {
		e.t.Fatal(err)
	}
	return rt.GetLayer().GetFields()[snapshot.ReadyKey].GetNumberValue()
}

// told checks what the Envoy was told since the last time it was asked.
func (e *envoy) told(want ...string) {
	e.t.Helper()
	e.live()
	if got := strings.Join(e.said, "\n"); got != strings.Join(want, "\n") {
		e.t.Errorf("%s was told\n%s\nnot\n%s", e.name, got, strings.Join(want, "\n"))
	}
	e.said = nil
}

// table is resources in which each cluster is routed to and has one endpoint.
func table(clusters ...string) snapshot.Resources {
	var r snapshot.Resources
	var routes []*routev3.Route
	for _, name := range clusters {
		r.Clusters = append(r.Clusters, &clusterv3.Cluster{
			Name: name, ClusterDiscoveryType: &clusterv3.Cluster_Type{Type: clusterv3.Cluster_EDS},
			EdsClusterConfig: &clusterv3.Cluster_EdsClusterConfig{EdsConfig: &corev3.ConfigSource{
				ResourceApiVersion: corev3.ApiVersion_V3, ConfigSourceSpecifier: &corev3.ConfigSource_Ads{Ads: &corev3.AggregatedConfigSource{}},
			}},
		})
		r.Endpoints = append(r.Endpoints, load(name, "127.0.0.1", 1))
		routes = append(routes, &routev3.Route{
			Match:  &routev3.RouteMatch{PathSpecifier: &routev3.RouteMatch_Prefix{Prefix: "/" + name}},
			Action: &routev3.Route_Route{Route: &routev3.RouteAction{ClusterSpecifier: &routev3.RouteAction_Cluster{Cluster: name}}},
		})
	}
	r.Routes = []*routev3.RouteConfiguration{{
		Name:         snapshot.RouteName,
		VirtualHosts: []*routev3.VirtualHost{{Name: "all", Domains: []string{"*"}, Routes: routes}},
	}}
	return r
}

func load(cluster, host string, port uint32) *endpointv3.ClusterLoadAssignment {
	return &endpointv3.ClusterLoadAssignment{ClusterName: cluster, Endpoints: []*endpointv3.LocalityLbEndpoints{{
		LbEndpoints: []*endpointv3.LbEndpoint{{HostIdentifier: &endpointv3.LbEndpoint_Endpoint{Endpoint: &endpointv3.Endpoint{
			Address: &corev3.Address{Address: &corev3.Address_SocketAddress{SocketAddress: &corev3.SocketAddress{
				Address: host, PortSpecifier: &corev3.SocketAddress_PortValue{PortValue: port},
			}}},
		}}}},
	}}}
}

// spoil changes a cluster's content without changing what it means.
func spoil(r snapshot.Resources, i int, mark string) snapshot.Resources {
	r.Clusters[i].AltStatName = fmt.Sprint("spoilt ", mark)
	return r
}
