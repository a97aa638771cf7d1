// Package admin serves what operators and probes ask: /livez, /readyz and /metrics.
package admin

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"go.uber.org/zap"
	"golang.org/x/sync/errgroup"
)

// Config says where to serve, and what to say. There is no authentication: keep Address on loopback, or guard it.
type Config struct {
	Address string
	// Ready are the checks of /readyz. /livez has none: whoever answers is alive.
	Ready   []Check
	Metrics *prometheus.Registry
	Log     *zap.Logger
}

// Server is a listening server.
type Server struct {
	mux      *http.ServeMux
	listener net.Listener
	log      *zap.Logger
}

// New opens the listener.
func New(c Config) (*Server, error) {
	l, err := net.Listen("tcp", c.Address)
	if err != nil {
		return nil, fmt.Errorf("serving health and metrics on %q: %w", c.Address, err)
	}
	s := &Server{mux: http.NewServeMux(), listener: l, log: c.Log}
	s.mux.Handle("GET /livez", checks("livez", nil))
	s.mux.Handle("GET /readyz", checks("readyz", c.Ready))
	s.mux.Handle("GET /metrics", promhttp.HandlerFor(c.Metrics, promhttp.HandlerOpts{
		Registry: c.Metrics, ErrorLog: zap.NewStdLog(c.Log),
	}))
	return s, nil
}

// Addr is where the server listens.
func (s *Server) Addr() net.Addr { return s.listener.Addr() }

// Run serves until ctx ends.
func (s *Server) Run(ctx context.Context) error {
	server := &http.Server{
		Handler: s.mux, ReadHeaderTimeout: 5 * time.Second, ReadTimeout: 10 * time.Second, IdleTimeout: time.Minute,
		ErrorLog: zap.NewStdLog(s.log),
	}
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error {
		s.log.Info("serving health and metrics", zap.Stringer("address", s.Addr()))
		if err := server.Serve(s.listener); !errors.Is(err, http.ErrServerClosed) {
			return fmt.Errorf("serving health and metrics on %s: %w", s.Addr(), err)
		}
		return nil
	})
	group.Go(func() error {
		<-ctx.Done()
		return server.Close()
	})
	return group.Wait()
}
