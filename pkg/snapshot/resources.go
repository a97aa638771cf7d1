// Package snapshot turns a node's route table into the xDS resources of its Envoy (pure), and publishes them in an
// order in which no request ever finds a route without its cluster.
package snapshot

import (
	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
)

// Names that the bootstrap and the snapshots agree on.
const (
	// RouteName is the one route configuration of a node's front.
	RouteName = "front"
	// RuntimeName is the RTDS layer that switches the front from its fallback chain to the routed one.
	RuntimeName = "peer_routing"
	// ReadyKey is the runtime key that the front's filter_chain_matcher reads: 100 means routed.
	ReadyKey = "peer_routing.ready"
)

// Resources is what one node's Envoy is given, each list sorted by name. Equal inputs give equal bytes.
type Resources struct {
	Clusters  []*clusterv3.Cluster
	Endpoints []*endpointv3.ClusterLoadAssignment
	Routes    []*routev3.RouteConfiguration
}
