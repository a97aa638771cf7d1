// Package extproc gives a front's clients the cluster's discovery documents in place of their local server's: a thin
// adapter from Envoy's ext_proc to an http.Handler. The local server is asked first, so that it decides who may see
// what; only its status is used.
package extproc

import (
	"context"
	"errors"
	"io"
	"net/http"
	"sync/atomic"
	"time"

	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"xds-server/pkg/documents"
)

// NodeMetadata is the gRPC metadata in which an Envoy names its node.
const NodeMetadata = "x-node"

// refreshTimeout is how long an answer waits for a server to be read again: less than the filter's message_timeout.
const refreshTimeout = time.Second

// legacyAge is how old a view may be that a document without an ETag is rendered from: clients read one after another.
const legacyAge = 250 * time.Millisecond

// Source is where documents come from.
type Source interface {
	// Documents is what is known now; nil while nothing is.
	Documents() *documents.Set
	// Refresh reads a server again whose view is older than age, as discovery.Poller does.
	Refresh(ctx context.Context, server string, age time.Duration) error
	// RefreshAll does so for all servers, and fails if one of them can't be read.
	RefreshAll(ctx context.Context, age time.Duration) error
}

// Server answers the discovery filter of Envoys.
type Server struct {
	extprocv3.UnimplementedExternalProcessorServer

	source  Source
	metrics *metrics
	log     *zap.Logger
	// offersCBOR says that some server was seen to have documents in CBOR.
	offersCBOR atomic.Bool
}

// New makes a server; Register adds it to a gRPC server.
func New(source Source, log *zap.Logger, reg prometheus.Registerer) *Server {
	return &Server{source: source, log: log, metrics: newMetrics(reg)}
}

// Register adds the service to a gRPC server.
func (s *Server) Register(r grpc.ServiceRegistrar) { extprocv3.RegisterExternalProcessorServer(r, s) }

// Process handles one request for a document: the filter sends its headers, then those of the local server's answer.
func (s *Server) Process(stream extprocv3.ExternalProcessor_ProcessServer) error {
	e := exchange{source: s.source, offersCBOR: &s.offersCBOR, node: first(metadata.ValueFromIncomingContext(stream.Context(), NodeMetadata))}
	begun := time.Now()
	for {
		in, err := stream.Recv()
		switch {
		case errors.Is(err, io.EOF), status.Code(err) == codes.Canceled:
			return nil
		case err != nil:
			return err
		}
		out := &extprocv3.ProcessingResponse{}
		switch m := in.GetRequest().(type) {
		case *extprocv3.ProcessingRequest_RequestHeaders:
			if s.source.Documents() == nil {
				// Envoy asks another xds-server.
				s.metrics.count(resultUnavailable)
				return status.Error(codes.Unavailable, "this xds-server knows no servers yet")
			}
			out.Response = &extprocv3.ProcessingResponse_RequestHeaders{
				RequestHeaders: &extprocv3.HeadersResponse{Response: changed(e.request(headers(m.RequestHeaders)))},
			}
		case *extprocv3.ProcessingRequest_ResponseHeaders:
			a := e.response(stream.Context(), headers(m.ResponseHeaders))
			s.metrics.count(a.result)
			s.metrics.took(time.Since(begun))
			if a.status == http.StatusServiceUnavailable {
				s.log.Warn("a discovery document can't be given", zap.String("node", e.node), zap.String("path", e.path()),
					zap.String("localStatus", a.localStatus))
			}
			out.Response = &extprocv3.ProcessingResponse_ResponseHeaders{
				ResponseHeaders: &extprocv3.HeadersResponse{Response: a.response(e.head())},
			}
		default:
			return status.Errorf(codes.InvalidArgument, "the discovery filter sends headers only, not %T", m)
		}
		if err := stream.Send(out); err != nil {
			return err
		}
	}
}

func first(values []string) string {
	if len(values) == 0 {
		return ""
	}
	return values[0]
}
