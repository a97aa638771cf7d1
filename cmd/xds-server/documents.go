package main

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"
	"google.golang.org/grpc/health"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"

	"xds-server/pkg/documents"
)

// serveAfter is when an xds-server that knows every server serves their documents in any case, however much is unread.
const serveAfter = 15 * time.Second

// poller reads servers again, as discovery.Poller does.
type poller interface {
	Refresh(ctx context.Context, server string, age time.Duration) error
	RefreshAll(ctx context.Context, age time.Duration) error
}

// knownDocuments hands the newest documents to the discovery filter. Envoys ask its health, and go to another xds-server
// while this one does not know every server, and until it has read documents of all that are there once.
type knownDocuments struct {
	poller
	current atomic.Pointer[documents.Set]
	health  *health.Server
	log     *zap.Logger
	logged  map[string]bool

	mu       sync.Mutex
	complete bool
	// read says that the documents of all servers were read once, or waited for long enough.
	read bool
	wait *time.Timer
}

// newKnownDocuments needs its poller set before it is used.
func newKnownDocuments(log *zap.Logger, reg prometheus.Registerer) *knownDocuments {
	k := &knownDocuments{health: health.NewServer(), log: log}
	k.serving(false)
	reg.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "xds_server_invalid_documents",
		Help: "OpenAPI documents of kube-apiservers that can't be used and are left out of the merged ones.",
	}, func() float64 { return float64(len(k.problems())) }))
	return k
}

// set takes new documents. Its calls come one after another.
func (k *knownDocuments) set(s *documents.Set, complete bool) {
	k.logProblems()
	k.current.Store(s)
	k.mu.Lock()
	defer k.mu.Unlock()
	k.complete = complete
	k.read = k.read || complete && !s.Unread()
	if complete && !k.read && k.wait == nil {
		k.wait = time.AfterFunc(serveAfter, func() {
			k.mu.Lock()
			defer k.mu.Unlock()
			k.read = true
			k.serving(k.complete)
		})
	}
	k.serving(complete && k.read)
}

func (k *knownDocuments) problems() []error {
	if s := k.current.Load(); s != nil {
		return s.Problems()
	}
	return nil
}

// logProblems says each problem once, until it is over. They turn up as documents are asked for.
func (k *knownDocuments) logProblems() {
	now := map[string]bool{}
	for _, err := range k.problems() {
		now[err.Error()] = true
		if !k.logged[err.Error()] {
			k.log.Warn("a kube-apiserver's OpenAPI document is left out", zap.Error(err))
		}
	}
	k.logged = now
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
