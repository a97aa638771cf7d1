package xds

import (
	"context"
	"errors"
	"io"
	"strings"

	adminv3 "github.com/envoyproxy/go-control-plane/envoy/admin/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	statusv3 "github.com/envoyproxy/go-control-plane/envoy/service/status/v3"
	matcherv3 "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"xds-server/pkg/snapshot"
)

// clientStatus tells what each connected Envoy was sent, took and refused, as client status discovery has it.
type clientStatus struct{ publisher *snapshot.Publisher }

var _ statusv3.ClientStatusDiscoveryServiceServer = clientStatus{}

func (c clientStatus) StreamClientStatus(stream statusv3.ClientStatusDiscoveryService_StreamClientStatusServer) error {
	for {
		req, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		resp, err := c.FetchClientStatus(stream.Context(), req)
		if err != nil {
			return err
		}
		if err := stream.Send(resp); err != nil {
			return err
		}
	}
}

func (c clientStatus) FetchClientStatus(ctx context.Context, req *statusv3.ClientStatusRequest) (*statusv3.ClientStatusResponse, error) {
	out := &statusv3.ClientStatusResponse{}
	for _, n := range c.publisher.Status() {
		match, err := matches(req.GetNodeMatchers(), n.Node)
		if err != nil {
			return nil, err
		}
		if !match {
			continue
		}
		for _, s := range n.Streams {
			config := &statusv3.ClientConfig{Node: &corev3.Node{Id: n.Node}, ClientScope: s.Protocol}
			for _, t := range s.Types {
				var content map[string]*anypb.Any
				if !req.GetExcludeResourceContents() {
					content = c.content(ctx, n.Node, t)
				}
				config.GenericXdsConfigs = append(config.GenericXdsConfigs, typeConfigs(t, content)...)
			}
			out.Config = append(out.Config, config)
		}
	}
	return out, nil
}

// content is what the type's resources are now, by name. The names are in Status's own order.
func (c clientStatus) content(ctx context.Context, node string, t snapshot.TypeStatus) map[string]*anypb.Any {
	out := map[string]*anypb.Any{}
	for _, r := range t.Resources {
		resp, err := c.publisher.Cache().Fetch(ctx, &discoveryv3.DiscoveryRequest{
			Node: &corev3.Node{Id: node}, TypeUrl: t.TypeURL, ResourceNames: []string{r.Name},
		})
		if err != nil {
			continue
		}
		if d, err := resp.GetDiscoveryResponse(); err == nil && len(d.GetResources()) == 1 {
			// The table may have changed since Status.
			if resp.GetReturnedResources()[r.Name] == r.Version {
				out[r.Name] = d.GetResources()[0]
			}
		}
	}
	return out
}

func typeConfigs(t snapshot.TypeStatus, content map[string]*anypb.Any) []*statusv3.ClientConfig_GenericXdsConfig {
	var out []*statusv3.ClientConfig_GenericXdsConfig
	for _, r := range t.Resources {
		g := &statusv3.ClientConfig_GenericXdsConfig{
			TypeUrl: t.TypeURL, Name: r.Name, VersionInfo: r.Accepted,
			ConfigStatus: statusv3.ConfigStatus_STALE, ClientStatus: adminv3.ClientResourceStatus_ACKED,
		}
		switch {
		case r.Rejected != "" && r.Rejected == r.Version && r.Accepted != r.Version:
			g.ConfigStatus, g.ClientStatus = statusv3.ConfigStatus_ERROR, adminv3.ClientResourceStatus_NACKED
			g.ErrorState = &adminv3.UpdateFailureState{
				Details: t.Reason, VersionInfo: r.Rejected, LastUpdateAttempt: timestamppb.New(t.Rejected),
			}
		case r.Accepted == "":
			g.ConfigStatus, g.ClientStatus = statusv3.ConfigStatus_NOT_SENT, adminv3.ClientResourceStatus_REQUESTED
			if t.Sent != "" && t.Sent == t.Version {
				g.ConfigStatus = statusv3.ConfigStatus_STALE
			}
		case r.Accepted == r.Version:
			g.ConfigStatus = statusv3.ConfigStatus_SYNCED
			g.XdsConfig = content[r.Name] // only this is known to be what the Envoy has
		}
		if g.ClientStatus == adminv3.ClientResourceStatus_ACKED && !t.Updated.IsZero() {
			g.LastUpdated = timestamppb.New(t.Updated)
		}
		out = append(out, g)
	}
	return out
}

// matches says whether one of the matchers, or none being given, fits the node's id.
func matches(matchers []*matcherv3.NodeMatcher, id string) (bool, error) {
	for _, m := range matchers {
		if len(m.GetNodeMetadatas()) > 0 {
			return false, status.Error(codes.Unimplemented, "nodes are matched by node_id only")
		}
		var ok bool
		switch p := m.GetNodeId().GetMatchPattern().(type) {
		case nil:
			ok = true
		case *matcherv3.StringMatcher_Exact:
			ok = id == p.Exact
		case *matcherv3.StringMatcher_Prefix:
			ok = strings.HasPrefix(id, p.Prefix)
		default:
			return false, status.Error(codes.Unimplemented, "node_id is matched by exact or prefix only")
		}
		if ok {
			return true, nil
		}
	}
	return len(matchers) == 0, nil
}
