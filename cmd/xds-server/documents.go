package main

import (
	"context"
	"sync/atomic"

	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"google.golang.org/grpc/health"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"

	"xds-server/pkg/documents"
)

// knownDocuments hands the newest documents to the discovery filter. Envoys ask its health, and go to another xds-server
// while this one does not know every server.
type knownDocuments struct {
	current atomic.Pointer[documents.Set]
	refresh func(ctx context.Context, server string) error
	health  *health.Server
}

func newKnownDocuments(refresh func(context.Context, string) error) *knownDocuments {
	k := &knownDocuments{refresh: refresh, health: health.NewServer()}
	k.serving(false)
	return k
}

func (k *knownDocuments) set(s *documents.Set, complete bool) {
	k.current.Store(s)
	k.serving(complete)
}

func (k *knownDocuments) serving(ok bool) {
	status := healthv1.HealthCheckResponse_NOT_SERVING
	if ok {
		status = healthv1.HealthCheckResponse_SERVING
	}
	k.health.SetServingStatus(extprocv3.ExternalProcessor_ServiceDesc.ServiceName, status)
}

// Documents is what is known now; nil while nothing is.
func (k *knownDocuments) Documents() *documents.Set { return k.current.Load() }

// Refresh reads a server again.
func (k *knownDocuments) Refresh(ctx context.Context, server string) error {
	return k.refresh(ctx, server)
}
