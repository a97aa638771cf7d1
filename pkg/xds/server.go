// Package xds serves what a snapshot.Publisher publishes, over gRPC: the aggregated stream (delta and state of the
// world), the single-type services with their Fetch, client status, health and reflection, on a unix socket for the
// node's own Envoy and over mutual TLS for other nodes'.
package xds

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	clusterservice "github.com/envoyproxy/go-control-plane/envoy/service/cluster/v3"
	discoveryservice "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	endpointservice "github.com/envoyproxy/go-control-plane/envoy/service/endpoint/v3"
	routeservice "github.com/envoyproxy/go-control-plane/envoy/service/route/v3"
	runtimeservice "github.com/envoyproxy/go-control-plane/envoy/service/runtime/v3"
	statusservice "github.com/envoyproxy/go-control-plane/envoy/service/status/v3"
	"github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	"github.com/envoyproxy/go-control-plane/pkg/server/config"
	"github.com/envoyproxy/go-control-plane/pkg/server/delta/v3"
	"github.com/envoyproxy/go-control-plane/pkg/server/sotw/v3"
	serverv3 "github.com/envoyproxy/go-control-plane/pkg/server/v3"
	"go.uber.org/zap"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/health"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/reflection"

	"xds-server/pkg/snapshot"
)

const (
	// Envoy pings an idle connection every few seconds to find out early that it is dead.
	minPing = 2 * time.Second
	// A client whose machine is gone is noticed after these.
	ping, pingTimeout = 30 * time.Second, 10 * time.Second
	// An Envoy that went to another node's xds-server stays there until the connection ends. So those connections end
	// from time to time, and the Envoy tries its own server first again. Nothing is sent to an Envoy that comes back
	// with what it should have, and ext_proc calls in flight have ageGrace to end. grpc-go adds jitter.
	maxAge   = 10 * time.Minute
	ageGrace = 5 * time.Second
	// An Envoy tells the versions of all it has when it connects.
	maxMessage = 16 << 20
)

// Config says where to serve what. A listener is left out by leaving its address empty.
type Config struct {
	// Socket is the path of the unix socket for the node's own Envoy.
	Socket string
	// Address is the host:port where other nodes' Envoys connect with mutual TLS.
	Address string
	TLS     TLSFiles
	// AllowedNames are the common names, one of which a client's certificate must have.
	AllowedNames []string

	Publisher *snapshot.Publisher
	// Register adds a further service, if there is one. Its health is for its owner to set in Health.
	Register func(grpc.ServiceRegistrar)
	Health   *health.Server
	Log      *zap.Logger
}

// Server is a listening server.
type Server struct {
	config    Config
	listeners []listener
}

// listener is a net.Listener with the options of the gRPC server on it: credentials belong to a whole server.
type listener struct {
	net.Listener
	options []grpc.ServerOption
}

// New checks the files and opens the listeners, so that whatever cannot work is said at the start.
func New(c Config) (*Server, error) {
	s := &Server{config: c}
	if c.Socket == "" && c.Address == "" {
		return nil, errors.New("serving xDS: neither a socket nor an address is given")
	}
	if c.Socket != "" {
		l, err := listenUnix(c.Socket)
		if err != nil {
			return nil, fmt.Errorf("serving xDS on socket %s: %w", c.Socket, err)
		}
		s.listeners = append(s.listeners, listener{Listener: l})
	}
	if c.Address != "" {
		l, err := s.listenTLS()
		if err != nil {
			return nil, errors.Join(fmt.Errorf("serving xDS on %s: %w", c.Address, err), s.Close())
		}
		s.listeners = append(s.listeners, l)
	}
	return s, nil
}

func (s *Server) listenTLS() (listener, error) {
	keys, err := newTLSKeys(s.config.TLS, s.config.AllowedNames, s.config.Log)
	if err != nil {
		return listener{}, err
	}
	l, err := net.Listen("tcp", s.config.Address)
	if err != nil {
		return listener{}, err
	}
	return listener{Listener: l, options: []grpc.ServerOption{
		grpc.Creds(credentials.NewTLS(keys.config())),
		grpc.KeepaliveParams(keepalive.ServerParameters{
			MaxConnectionAge: maxAge, MaxConnectionAgeGrace: ageGrace, Time: ping, Timeout: pingTimeout,
		}),
	}}, nil
}

// Close releases the listeners of a server that was never run.
func (s *Server) Close() error {
	var err error
	for _, l := range s.listeners {
		err = errors.Join(err, l.Close())
	}
	return err
}

// Addrs are the addresses that the server listens on: the socket first.
func (s *Server) Addrs() []net.Addr {
	out := make([]net.Addr, 0, len(s.listeners))
	for _, l := range s.listeners {
		out = append(out, l.Addr())
	}
	return out
}

// Run serves until ctx ends. Streams are cut then, not drained: an Envoy keeps what it has, and looks for another
// server at once.
func (s *Server) Run(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	log := s.config.Log
	opt := func(o *config.Opts) { o.Logger = controlPlaneLog{log.Sugar()} }
	// Only clusters can be asked for without a name; for the other types an empty list is an empty list.
	named := config.DeactivateLegacyWildcardForTypes([]string{resource.EndpointType, resource.RouteType, resource.RuntimeType})
	cache, callbacks := s.config.Publisher.Cache(), s.config.Publisher.Callbacks()
	xds := serverv3.NewServerAdvanced(fetcher{cache},
		sotw.NewServer(ctx, cache, callbacks, opt, named), delta.NewServer(ctx, cache, callbacks, opt, named))
	healthy := s.config.Health
	if healthy == nil {
		healthy = health.NewServer()
	}

	for _, l := range s.listeners {
		server := s.grpcServer(l, xds, healthy)
		group.Go(func() error {
			log.Info("serving xDS", zap.Stringer("address", l.Addr()))
			if err := server.Serve(l.Listener); err != nil && ctx.Err() == nil {
				return fmt.Errorf("serving xDS on %s: %w", l.Addr(), err)
			}
			return nil
		})
		group.Go(func() error {
			<-ctx.Done()
			healthy.Shutdown()
			server.Stop()
			return nil
		})
	}
	return group.Wait()
}

func (s *Server) grpcServer(l listener, xds serverv3.Server, healthy *health.Server) *grpc.Server {
	server := grpc.NewServer(append([]grpc.ServerOption{
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: minPing, PermitWithoutStream: true}),
		grpc.MaxRecvMsgSize(maxMessage),
		// Stop then returns when nothing of ours runs any more.
		grpc.WaitForHandlers(true),
	}, l.options...)...)
	discoveryservice.RegisterAggregatedDiscoveryServiceServer(server, xds)
	clusterservice.RegisterClusterDiscoveryServiceServer(server, xds)
	endpointservice.RegisterEndpointDiscoveryServiceServer(server, xds)
	routeservice.RegisterRouteDiscoveryServiceServer(server, xds)
	runtimeservice.RegisterRuntimeDiscoveryServiceServer(server, xds)
	statusservice.RegisterClientStatusDiscoveryServiceServer(server, clientStatus{s.config.Publisher})
	healthv1.RegisterHealthServer(server, healthy)
	for name := range server.GetServiceInfo() {
		healthy.SetServingStatus(name, healthv1.HealthCheckResponse_SERVING)
	}
	if s.config.Register != nil {
		s.config.Register(server)
	}
	reflection.Register(server)
	return server
}
