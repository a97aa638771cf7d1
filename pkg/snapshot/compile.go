package snapshot

import (
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"xds-server/pkg/peers"
	"xds-server/pkg/routing"
)

// DefaultSecretsDir is where Envoys find their SDS files that did not say otherwise.
const DefaultSecretsDir = "/etc/xds-server/envoy"

// Peer is a server as an endpoint of other nodes' Envoys.
type Peer struct {
	peers.Server
	// Ready is whether its /readyz answered ok at the last poll.
	Ready bool
}

// The two ways to reach a server: over the front-proxy certificate, for requests whose identity Envoy has evaluated,
// and without, for those that bring a token or nothing. An apiserver answers 401 where they are mixed up.
const (
	fp    = "fp"
	plain = "plain"
)

var variants = []string{fp, plain}

// Compile makes the resources of one node's Envoy from its route table and from what its peers are. secretsDir is the
// directory of the SDS files on that node.
func Compile(table routing.Table, known map[string]Peer, secretsDir string) (Resources, error) {
	b := builder{known: known, secretsDir: secretsDir}
	for _, set := range table.Sets() {
		if err := b.addSet(set); err != nil {
			return Resources{}, fmt.Errorf("compiling node %q: %w", table.Node, err)
		}
	}
	routes, err := routeConfiguration(table, known)
	if err != nil {
		return Resources{}, fmt.Errorf("compiling node %q: %w", table.Node, err)
	}
	b.out.Routes = append(b.out.Routes, routes)
	slices.SortFunc(b.out.Clusters, byName)
	slices.SortFunc(b.out.Endpoints, byClusterName)
	return b.out, nil
}

func byName[T interface{ GetName() string }](a, b T) int {
	return strings.Compare(a.GetName(), b.GetName())
}

func byClusterName[T interface{ GetClusterName() string }](a, b T) int {
	return strings.Compare(a.GetClusterName(), b.GetClusterName())
}

// clusterOf is the cluster that serves a set: the bootstrap's own for the local server alone, an aggregate of that and
// the peers where both serve it, else the peers.
func clusterOf(set routing.Set, variant string) string {
	switch {
	case len(set.Peers) == 0:
		return "local-" + variant
	case set.Local:
		return set.ID() + "/" + variant
	default:
		return peersCluster(set, variant)
	}
}

func peersCluster(set routing.Set, variant string) string {
	return "peers/" + strings.Join(set.Peers, "+") + "/" + variant
}

// builder collects clusters and endpoints; sets with the same peers share them.
type builder struct {
	known      map[string]Peer
	secretsDir string
	seen       map[string]bool
	out        Resources
}

func (b *builder) addSet(set routing.Set) error {
	if len(set.Peers) == 0 {
		return nil
	}
	if b.seen == nil {
		b.seen = map[string]bool{}
	}
	for _, v := range variants {
		if name := peersCluster(set, v); !b.seen[name] {
			b.seen[name] = true
			endpoints, err := b.endpoints(name, set, v)
			if err != nil {
				return err
			}
			c, err := b.peersCluster(name, v, len(set.Peers))
			if err != nil {
				return err
			}
			b.out.Clusters = append(b.out.Clusters, c)
			b.out.Endpoints = append(b.out.Endpoints, endpoints)
		}
		if set.Local {
			c, err := aggregateCluster(clusterOf(set, v), "local-"+v, peersCluster(set, v))
			if err != nil {
				return err
			}
			b.out.Clusters = append(b.out.Clusters, c)
		}
	}
	return nil
}

// splitAddress parses host:port, whose host must be an IP address for EDS.
func splitAddress(server string, a string) (string, uint32, error) {
	host, port, err := net.SplitHostPort(a)
	if err != nil {
		return "", 0, fmt.Errorf("address %q of server %q: %w", a, server, err)
	}
	n, err := strconv.ParseUint(port, 10, 16)
	if err != nil || net.ParseIP(host) == nil {
		return "", 0, fmt.Errorf("address %q of server %q is not IP:port", a, server)
	}
	return host, uint32(n), nil
}

// packed marshals deterministically, so that equal resources are equal bytes.
func packed(m proto.Message) (*anypb.Any, error) {
	a := new(anypb.Any)
	if err := anypb.MarshalFrom(a, m, proto.MarshalOptions{Deterministic: true}); err != nil {
		return nil, fmt.Errorf("marshalling %T: %w", m, err)
	}
	return a, nil
}
