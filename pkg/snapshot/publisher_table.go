package snapshot

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"maps"
	"slices"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	runtimev3 "github.com/envoyproxy/go-control-plane/envoy/service/runtime/v3"
	resourcev3 "github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protopath"
	"google.golang.org/protobuf/reflect/protorange"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/structpb"
)

// kind is one of the resource types that are served, in the order in which an Envoy is to get them.
type kind int

const (
	clusters kind = iota
	endpoints
	routes
	runtimes
	kinds
)

var (
	kindURL  = [kinds]string{resourcev3.ClusterType, resourcev3.EndpointType, resourcev3.RouteType, resourcev3.RuntimeType}
	kindName = [kinds]string{"cluster", "endpoint", "route", "runtime"}
)

// kindOf returns the kind of a type URL, and false for types that are not served.
func kindOf(typeURL string) (kind, bool) {
	i := slices.Index(kindURL[:], typeURL)
	return kind(i), i >= 0
}

// resource is one xDS resource. Its version is the hash of its bytes.
type resource struct {
	name    string
	version string
	body    *anypb.Any
}

// table is one node's resources with their versions. It does not change once it was made.
type table struct {
	resources [kinds]map[string]*resource
	versions  [kinds]string
	// needed names the endpoints without which the table's clusters stay empty.
	needed []string
}

// The two states of the one runtime resource. off is what an Envoy without routes is given: it waits for its runtime
// layers before it looks for anything else, so that silence would cost it the initial_fetch_timeout.
var (
	readyOn  = runtimeResource(100)
	readyOff = runtimeResource(0)
)

func runtimeResource(percent float64) map[string]*resource {
	r, err := newResource(RuntimeName, &runtimev3.Runtime{
		Name:  RuntimeName,
		Layer: &structpb.Struct{Fields: map[string]*structpb.Value{ReadyKey: structpb.NewNumberValue(percent)}},
	})
	if err != nil {
		panic(err) // a constant
	}
	return map[string]*resource{RuntimeName: r}
}

// noEndpoints says that a cluster has no endpoints.
func noEndpoints(cluster string) *resource {
	r, err := newResource(cluster, &endpointv3.ClusterLoadAssignment{ClusterName: cluster})
	if err != nil {
		panic(err) // a string
	}
	return r
}

// newTable checks and hashes r. Resources that last has with the same bytes were checked before.
func newTable(r Resources, last *table) (*table, error) {
	t := &table{}
	for k := range t.resources {
		t.resources[k] = map[string]*resource{}
	}
	for _, c := range r.Clusters {
		if err := t.add(clusters, c.GetName(), c, last); err != nil {
			return nil, err
		}
		if c.GetType() == clusterv3.Cluster_EDS {
			name := c.GetEdsClusterConfig().GetServiceName()
			if name == "" {
				name = c.GetName()
			}
			t.needed = append(t.needed, name)
		}
	}
	for _, e := range r.Endpoints {
		if err := t.add(endpoints, e.GetClusterName(), e, last); err != nil {
			return nil, err
		}
	}
	for _, rc := range r.Routes {
		if err := t.add(routes, rc.GetName(), rc, last); err != nil {
			return nil, err
		}
	}
	for _, name := range t.needed {
		if t.resources[endpoints][name] == nil {
			return nil, fmt.Errorf("no endpoints for cluster %q", name)
		}
	}
	t.resources[runtimes] = readyOn
	for k := range t.versions {
		t.versions[k] = setVersion(t.resources[k])
	}
	return t, nil
}

func (t *table) add(k kind, name string, m proto.Message, last *table) error {
	if name == "" {
		return fmt.Errorf("a %s without a name", kindName[k])
	}
	if t.resources[k][name] != nil {
		return fmt.Errorf("two of %s %q", kindName[k], name)
	}
	r, err := newResource(name, m)
	if err != nil {
		return fmt.Errorf("%s %q: %w", kindName[k], name, err)
	}
	if last == nil || last.resources[k][name] == nil || last.resources[k][name].version != r.version {
		if err := validate(m); err != nil {
			return fmt.Errorf("%s %q: %w", kindName[k], name, err)
		}
	}
	t.resources[k][name] = r
	return nil
}

func newResource(name string, m proto.Message) (*resource, error) {
	body := &anypb.Any{}
	if err := anypb.MarshalFrom(body, m, proto.MarshalOptions{Deterministic: true}); err != nil {
		return nil, fmt.Errorf("encoding: %w", err)
	}
	sum := sha256.Sum256(body.GetValue())
	return &resource{name: name, version: hex.EncodeToString(sum[:16]), body: body}, nil
}

// setVersion is the version of several resources together: the hash of their names and versions.
func setVersion(rs map[string]*resource) string {
	h := sha256.New()
	for _, name := range slices.Sorted(maps.Keys(rs)) {
		// A hash never fails to write.
		_, _ = io.WriteString(h, name+"\x00"+rs[name].version+"\x00")
	}
	return hex.EncodeToString(h.Sum(nil)[:16])
}

// validate applies the rules that Envoy's own protos state, also inside of Any, where routes of a matcher tree lie.
func validate(m proto.Message) error {
	check := func(m proto.Message) error {
		if v, ok := m.(interface{ Validate() error }); ok {
			return v.Validate()
		}
		return nil
	}
	if err := check(m); err != nil {
		return err
	}
	return protorange.Range(m.ProtoReflect(), func(p protopath.Values) error {
		if last := p.Index(-1); last.Step.Kind() == protopath.AnyExpandStep {
			return check(last.Value.Message().Interface())
		}
		return nil
	})
}
