package peers

import (
	"context"
	"fmt"
	"net/netip"
	"slices"

	"go.uber.org/zap"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	discoveryclient "k8s.io/client-go/kubernetes/typed/discovery/v1"
	"k8s.io/client-go/rest"
)

// The one object that the kube-apiservers themselves keep up to date. Other slices may carry the label of the same
// service, and are written by others.
const (
	sliceNamespace = "default"
	sliceName      = "kubernetes"
)

// EndpointSlice finds the servers in the EndpointSlice kubernetes of namespace default. A server leaves it as soon as
// it stops, so its absence says little; and whoever can write it can't direct anything to a machine that has no
// certificate of the cluster's CA.
type EndpointSlice struct {
	// Client reads that one object (get, list and watch, restricted to its name).
	Client *rest.Config
	// Port is the nodes' peer listeners' port or, if Direct, the kube-apiservers' own.
	Port   int
	Direct bool
	// Names gives a server's name by its address. A server without one is named by its address.
	Names map[netip.Addr]string

	Log     *zap.Logger
	Metrics *Metrics
}

// Run implements Source. It emits nothing before the object was read once, and the last list stays while the object
// can't be read, is deleted or holds no usable address.
func (s EndpointSlice) Run(ctx context.Context, emit func([]Server)) error {
	client, err := discoveryclient.NewForConfig(s.Client)
	if err != nil {
		return fmt.Errorf("making a client for the EndpointSlice %s/%s: %w", sliceNamespace, sliceName, err)
	}
	var last []Server
	w := &watcher[*discoveryv1.EndpointSlice]{
		source: sliceSource, log: s.Log, metrics: s.Metrics, objects: map[string]*discoveryv1.EndpointSlice{},
		changed: func(list []*discoveryv1.EndpointSlice) {
			servers := s.servers(list)
			if len(servers) == 0 {
				s.Log.Warn("the EndpointSlice names no server, the last list stays",
					zap.String("object", sliceNamespace+"/"+sliceName), zap.Int("servers", len(last)))
				return
			}
			if !slices.Equal(servers, last) {
				last = servers
				emit(slices.Clone(servers))
			}
		},
	}
	run(ctx, w, client.EndpointSlices(sliceNamespace), &discoveryv1.EndpointSlice{}, func(o *metav1.ListOptions) {
		o.FieldSelector = fields.OneTermEqualSelector("metadata.name", sliceName).String()
	})
	return nil
}

// servers makes the list from the object: sorted by name, each address and each name once, within MaxServers.
func (s EndpointSlice) servers(list []*discoveryv1.EndpointSlice) []Server {
	reject := func(address, why string) {
		s.Metrics.rejected.WithLabelValues(sliceSource).Inc()
		s.Log.Warn("an address of the EndpointSlice is left out", zap.String("address", address), zap.String("reason", why))
	}
	var addresses []netip.Addr
	for _, slice := range list {
		// The field selector asks for this name only; a server that ignored it must not add others.
		if slice.Name != sliceName {
			continue
		}
		for _, endpoint := range slice.Endpoints {
			for _, text := range endpoint.Addresses {
				a, err := netip.ParseAddr(text)
				if err != nil || !Usable(a) {
					reject(text, "not the address of one machine")
					continue
				}
				addresses = append(addresses, a.Unmap())
			}
		}
	}
	// In order of address, so that which of two equal names stays does not depend on the object's order.
	slices.SortFunc(addresses, netip.Addr.Compare)
	var out []Server
	named := map[string]bool{}
	for _, a := range slices.Compact(addresses) {
		name := s.Names[a]
		if name == "" {
			name = a.String()
		}
		switch {
		case named[name]:
			reject(a.String(), "another address has its name "+name)
		case len(out) == MaxServers:
			reject(a.String(), fmt.Sprintf("more than %d servers", MaxServers))
		default:
			named[name] = true
			out = append(out, Server{Name: name, Address: netip.AddrPortFrom(a, uint16(s.Port)).String(), Direct: s.Direct}) //nolint:gosec // the configuration holds a port
		}
	}
	return sorted(out)
}
