package xds

import (
	"context"
	"errors"
	"io"
	"slices"
	"testing"

	adminv3 "github.com/envoyproxy/go-control-plane/envoy/admin/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	clusterservice "github.com/envoyproxy/go-control-plane/envoy/service/cluster/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	endpointservice "github.com/envoyproxy/go-control-plane/envoy/service/endpoint/v3"
	routeservice "github.com/envoyproxy/go-control-plane/envoy/service/route/v3"
	runtimeservice "github.com/envoyproxy/go-control-plane/envoy/service/runtime/v3"
	statusv3 "github.com/envoyproxy/go-control-plane/envoy/service/status/v3"
	"google.golang.org/grpc/codes"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	reflectionv1 "google.golang.org/grpc/reflection/grpc_reflection_v1"
	"google.golang.org/grpc/status"
)

func TestAnyNodesResourcesCanBeFetchedWithoutItsEnvoy(t *testing.T) {
	onBench(t, func(l *bench) {
		l.set("a", table("b", "c"))
		ctx := context.Background()
		req := func(names ...string) *discoveryv3.DiscoveryRequest {
			return &discoveryv3.DiscoveryRequest{Node: &corev3.Node{Id: "a"}, ResourceNames: names}
		}
		for name, fetch := range map[string]struct {
			want  int
			fetch func() (*discoveryv3.DiscoveryResponse, error)
		}{
			"clusters": {2, func() (*discoveryv3.DiscoveryResponse, error) {
				return clusterservice.NewClusterDiscoveryServiceClient(l.conn).FetchClusters(ctx, req())
			}},
			"one cluster": {1, func() (*discoveryv3.DiscoveryResponse, error) {
				return clusterservice.NewClusterDiscoveryServiceClient(l.conn).FetchClusters(ctx, req("c"))
			}},
			"endpoints": {2, func() (*discoveryv3.DiscoveryResponse, error) {
				return endpointservice.NewEndpointDiscoveryServiceClient(l.conn).FetchEndpoints(ctx, req())
			}},
			"routes": {1, func() (*discoveryv3.DiscoveryResponse, error) {
				return routeservice.NewRouteDiscoveryServiceClient(l.conn).FetchRoutes(ctx, req())
			}},
			"runtime": {1, func() (*discoveryv3.DiscoveryResponse, error) {
				return runtimeservice.NewRuntimeDiscoveryServiceClient(l.conn).FetchRuntime(ctx, req())
			}},
		} {
			first, err := fetch.fetch()
			if err != nil || len(first.GetResources()) != fetch.want || first.GetVersionInfo() == "" {
				t.Errorf("%s: %v, %v", name, first, err)
			}
		}
		unknown := &discoveryv3.DiscoveryRequest{Node: &corev3.Node{Id: "z"}}
		if _, err := routeservice.NewRouteDiscoveryServiceClient(l.conn).FetchRoutes(ctx, unknown); status.Code(err) != codes.NotFound {
			t.Errorf("an unknown node: %v", err)
		}
	})
}

func TestGrpcurlFindsTheServicesAndTheirHealth(t *testing.T) {
	onBench(t, func(l *bench) {
		ctx, cancel := context.WithCancel(context.Background())
		stream, err := reflectionv1.NewServerReflectionClient(l.conn).ServerReflectionInfo(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if err := stream.Send(&reflectionv1.ServerReflectionRequest{
			MessageRequest: &reflectionv1.ServerReflectionRequest_ListServices{},
		}); err != nil {
			t.Fatal(err)
		}
		resp, err := stream.Recv()
		if err != nil {
			t.Fatal(err)
		}
		var names []string
		for _, s := range resp.GetListServicesResponse().GetService() {
			names = append(names, s.GetName())
			if h, err := healthv1.NewHealthClient(l.conn).Check(ctx, &healthv1.HealthCheckRequest{Service: s.GetName()}); err != nil &&
				status.Code(err) != codes.NotFound || err == nil && h.GetStatus() != healthv1.HealthCheckResponse_SERVING {
				t.Errorf("health of %s: %v, %v", s.GetName(), h, err)
			}
		}
		for _, want := range []string{
			"envoy.service.discovery.v3.AggregatedDiscoveryService", "envoy.service.cluster.v3.ClusterDiscoveryService",
			"envoy.service.endpoint.v3.EndpointDiscoveryService", "envoy.service.route.v3.RouteDiscoveryService",
			"envoy.service.runtime.v3.RuntimeDiscoveryService", "envoy.service.status.v3.ClientStatusDiscoveryService",
			"grpc.health.v1.Health",
		} {
			if !slices.Contains(names, want) {
				t.Errorf("%s is not among %v", want, names)
			}
		}
		if _, err := healthv1.NewHealthClient(l.conn).Check(ctx, &healthv1.HealthCheckRequest{}); err != nil {
			t.Error(err)
		}
		_ = stream.CloseSend()
		if _, err := stream.Recv(); !errors.Is(err, io.EOF) {
			t.Error(err)
		}
		cancel()
	})
}

func TestClientStatusTellsWhatAnEnvoyTookAndRefused(t *testing.T) {
	onBench(t, func(l *bench) {
		l.set("a", table("b"))
		e := newEnvoy(t, "a")
		e.connect(l)
		e.refuses["c"] = "no good"
		l.set("a", table("b", "c"))
		e.live()
		resp, err := statusv3.NewClientStatusDiscoveryServiceClient(l.conn).FetchClientStatus(context.Background(), &statusv3.ClientStatusRequest{})
		if err != nil {
			t.Fatal(err)
		}
		if len(resp.GetConfig()) != 1 || resp.GetConfig()[0].GetNode().GetId() != "a" {
			t.Fatalf("got %v", resp)
		}
		got := map[string]*statusv3.ClientConfig_GenericXdsConfig{}
		for _, g := range resp.GetConfig()[0].GetGenericXdsConfigs() {
			got[short[g.GetTypeUrl()]+" "+g.GetName()] = g
		}
		if b := got["clusters b"]; b.GetConfigStatus() != statusv3.ConfigStatus_SYNCED || b.GetXdsConfig() == nil {
			t.Errorf("accepted: %v", b)
		}
		if c := got["clusters c"]; c.GetClientStatus() != adminv3.ClientResourceStatus_NACKED || c.GetErrorState().GetDetails() != "no good" {
			t.Errorf("rejected: %v", c)
		}
		if r := got["routes front"]; r.GetConfigStatus() != statusv3.ConfigStatus_STALE || r.GetClientStatus() != adminv3.ClientResourceStatus_ACKED {
			t.Errorf("routes waiting for their cluster: %v", r)
		}
		e.cancel()
	})
}
