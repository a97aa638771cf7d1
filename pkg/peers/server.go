// Package peers tells who the kube-apiservers of a control plane are: a static list from the configuration, or the
// cluster's own EndpointSlice, with identity leases as further evidence that a server exists.
package peers

import "context"

// Server is one kube-apiserver of the control plane, as other nodes reach it.
type Server struct {
	// Name is the node's name, which is also its Envoy's node.id.
	Name string
	// Address is host:port of the node's Envoy peer listener or, if Direct, of the kube-apiserver itself.
	Address string
	// Direct says that Address is the kube-apiserver's own port, with no Envoy before it.
	Direct bool
}

// Source tells who the servers are, for as long as it runs.
type Source interface {
	// Run calls emit with the complete list, sorted by name, at the start and after every change, until ctx ends.
	Run(ctx context.Context, emit func([]Server)) error
}
