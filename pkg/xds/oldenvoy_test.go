package xds

import (
	"context"
	"strings"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// aged asks for clusters as an Envoy of a version, and gives how the stream ended, or that it was answered.
func (l *bench) aged(name string, major, minor uint32, sotw bool) error {
	l.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	node := &corev3.Node{Id: "a", UserAgentName: name, UserAgentVersionType: &corev3.Node_UserAgentBuildVersion{
		UserAgentBuildVersion: &corev3.BuildVersion{Version: &typev3.SemanticVersion{MajorNumber: major, MinorNumber: minor, Patch: 3}},
	}}
	client := discoveryv3.NewAggregatedDiscoveryServiceClient(l.conn)
	if sotw {
		stream, err := client.StreamAggregatedResources(ctx)
		if err != nil {
			l.t.Fatal(err)
		}
		_ = stream.Send(&discoveryv3.DiscoveryRequest{Node: node, TypeUrl: resource.ClusterType})
		_, err = stream.Recv()
		return err
	}
	stream, err := client.DeltaAggregatedResources(ctx)
	if err != nil {
		l.t.Fatal(err)
	}
	_ = stream.Send(&discoveryv3.DeltaDiscoveryRequest{Node: node, TypeUrl: resource.ClusterType})
	_, err = stream.Recv()
	return err
}

func TestAnEnvoyBefore1_40IsRefusedInWordsThatItLogs(t *testing.T) {
	onBench(t, func(l *bench) {
		l.set("a", table("b"))
		for _, sotw := range []bool{false, true} {
			for _, v := range [][2]uint32{{1, 39}, {1, 9}, {0, 50}} {
				err := l.aged("envoy", v[0], v[1], sotw)
				if status.Code(err) != codes.FailedPrecondition || !strings.Contains(err.Error(), `of node "a" is too old: xds-server needs 1.40 or newer`) {
					t.Errorf("Envoy %v: %v", v, err)
				}
			}
			for _, v := range [][2]uint32{{1, 40}, {1, 41}, {2, 0}} {
				if err := l.aged("envoy", v[0], v[1], sotw); err != nil {
					t.Errorf("Envoy %v: %v", v, err)
				}
			}
			// What is not Envoy has versions of its own.
			if err := l.aged("grpc-go", 1, 20, sotw); err != nil {
				t.Errorf("another client: %v", err)
			}
		}
	})
}
