package routing

import (
	"context"
	"fmt"
	"net"
	"os"
	"time"

	clusterservice "github.com/envoyproxy/go-control-plane/envoy/service/cluster/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	endpointservice "github.com/envoyproxy/go-control-plane/envoy/service/endpoint/v3"
	routeservice "github.com/envoyproxy/go-control-plane/envoy/service/route/v3"
	runtimeservice "github.com/envoyproxy/go-control-plane/envoy/service/runtime/v3"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"github.com/envoyproxy/go-control-plane/pkg/cache/types"
	cachev3 "github.com/envoyproxy/go-control-plane/pkg/cache/v3"
	resourcev3 "github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	serverv3 "github.com/envoyproxy/go-control-plane/pkg/server/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"xds-server/test/e2e/suite"
	"xds-server/test/plane"
)

// withoutOrder shows that the steady load would notice if a table's routes came before its clusters: an xDS server that
// keeps no order takes the place of a node's xds-server, with the very resources that this one had.
func withoutOrder(s *suite.S, c changing, change int) {
	s.Helper()
	n := c.old
	tables := map[bool]map[resourcev3.Type][]types.Resource{}
	for _, next := range []bool{false, true} {
		c.change(change)
		c.waitChanged(s, change)
		tables[next] = fetchAll(s, n)
		change++
	}
	n.XDSServer.Kill()
	cache := cachev3.NewSnapshotCache(false, cachev3.IDHash{}, nil)
	publish := func(version string, table map[resourcev3.Type][]types.Resource) {
		snapshot, err := cachev3.NewSnapshot(version, table)
		if err == nil {
			err = cache.SetSnapshot(s.Ctx, n.Name, snapshot)
		}
		if err != nil {
			s.Fatal(err)
		}
	}
	publish("1", tables[false])
	serveWithoutOrder(s, n.XDSSocket, cache)
	waitRoutes := func(change int) {
		if err := plane.Eventually(s.Ctx, "the routes came without order", func() error {
			_, routes, err := routesOf(s.Ctx, n)
			if err == nil && !containsChange(routes, change) {
				err = fmt.Errorf("not those of change %d", change)
			}
			return err
		}); err != nil {
			s.Fatal(err)
		}
	}
	waitRoutes(change - 2)

	load := startSteady(s, c.world, localThing(n), newerThing(n))
	early := map[resourcev3.Type][]types.Resource{}
	for typeURL, resources := range tables[false] {
		early[typeURL] = resources
	}
	early[resourcev3.RouteType] = tables[true][resourcev3.RouteType]
	publish("2", early)
	waitRoutes(change - 1)
	noticed := plane.Eventually(s.Ctx, "a request fails", func() error {
		load.mu.Lock()
		defer load.mu.Unlock()
		if load.failed == 0 && load.requests.Load() < 1000 {
			return fmt.Errorf("none of %d", load.requests.Load())
		}
		return nil
	})
	publish("3", tables[true])
	if failed := load.stop(); noticed != nil || failed == 0 {
		s.Errorf("routes came before their clusters, and none of %d requests failed: this test would not notice that the order is wrong (%v)", load.requests.Load(), noticed)
	}
}

// fetchAll is everything that a node's xds-server gives its Envoy.
func fetchAll(s *suite.S, n *plane.Node) map[resourcev3.Type][]types.Resource {
	s.Helper()
	conn, err := grpc.NewClient("unix:"+n.XDSSocket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		s.Fatal(err)
	}
	defer conn.Close()
	type fetch func(context.Context, *discoveryv3.DiscoveryRequest, ...grpc.CallOption) (*discoveryv3.DiscoveryResponse, error)
	out := map[resourcev3.Type][]types.Resource{}
	for typeURL, f := range map[resourcev3.Type]fetch{
		resourcev3.ClusterType:  clusterservice.NewClusterDiscoveryServiceClient(conn).FetchClusters,
		resourcev3.EndpointType: endpointservice.NewEndpointDiscoveryServiceClient(conn).FetchEndpoints,
		resourcev3.RouteType:    routeservice.NewRouteDiscoveryServiceClient(conn).FetchRoutes,
		resourcev3.RuntimeType:  runtimeservice.NewRuntimeDiscoveryServiceClient(conn).FetchRuntime,
	} {
		s.Count(1)
		answer, err := f(s.Ctx, &discoveryv3.DiscoveryRequest{Node: &corev3.Node{Id: n.Name}, TypeUrl: typeURL})
		if err != nil {
			s.Fatalf("fetching %s of %s: %v", typeURL, n.Name, err)
		}
		for _, r := range answer.GetResources() {
			m, err := r.UnmarshalNew()
			if err != nil {
				s.Fatal(err)
			}
			out[typeURL] = append(out[typeURL], m)
		}
	}
	return out
}

func serveWithoutOrder(s *suite.S, socket string, cache cachev3.Cache) {
	s.Helper()
	if err := os.Remove(socket); err != nil && !os.IsNotExist(err) {
		s.Fatal(err)
	}
	l, err := net.Listen("unix", socket)
	if err != nil {
		s.Fatal(err)
	}
	ctx, cancel := context.WithCancel(s.Ctx)
	server := grpc.NewServer()
	discoveryv3.RegisterAggregatedDiscoveryServiceServer(server, serverv3.NewServer(ctx, cache, nil))
	go func() { _ = server.Serve(l) }()
	s.Cleanup(func() {
		cancel()
		stopped := time.AfterFunc(5*time.Second, server.Stop)
		server.GracefulStop()
		stopped.Stop()
	})
}
