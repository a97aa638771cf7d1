package streamer

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log"
	"maps"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"sync"
	"time"

	"k8s.io/cri-streaming/pkg/streaming"
)

// Options is what a stand-in kubelet needs to serve.
type Options struct {
	// Certificate is the serving certificate. A kube-apiserver verifies it, for the node's address, only if it was
	// given --kubelet-certificate-authority.
	Certificate tls.Certificate
	// ClientCAs, if set, makes every caller present a client certificate of one of them, as a kubelet with
	// anonymous authentication off does. A kube-apiserver has one by --kubelet-client-certificate.
	ClientCAs *x509.CertPool
	// Host is the address to listen at. Loopback if not valid.
	Host netip.Addr
	// LogInterval is the time between two lines of a log that is followed. 50 ms if zero.
	LogInterval time.Duration
}

// Server is a running stand-in for a kubelet.
type Server struct {
	address netip.AddrPort
	log     logWriter
	streams streaming.Server

	// end cancels the context of every request; done counts what still runs.
	end  context.CancelFunc
	done sync.WaitGroup

	listeners []*trackedListener

	mu       sync.Mutex
	closed   bool
	requests map[Request]int
}

// Request is a kind of request that reached the stand-in.
type Request struct {
	// Verb is containerLogs, exec, attach or portForward.
	Verb string
	// Upgrade is the request's Upgrade header in lower case: websocket, spdy/3.1 or nothing. A kube-apiserver turns a
	// client's websocket into SPDY, unless the node declares that its kubelet takes websockets.
	Upgrade string
}

// Start listens and serves until Close.
func Start(opts Options) (*Server, error) {
	host := opts.Host
	if !host.IsValid() {
		host = netip.AddrFrom4([4]byte{127, 0, 0, 1})
	}
	if opts.LogInterval == 0 {
		opts.LogInterval = 50 * time.Millisecond
	}
	ctx, cancel := context.WithCancel(context.Background())
	s := &Server{
		log:      logWriter{interval: opts.LogInterval},
		end:      cancel,
		requests: map[Request]int{},
	}
	if err := s.start(ctx, host, opts); err != nil {
		s.Close()
		return nil, err
	}
	return s, nil
}

func (s *Server) start(ctx context.Context, host netip.Addr, opts Options) error {
	outer, err := s.listen(host)
	if err != nil {
		return err
	}
	s.address = netip.MustParseAddrPort(outer.Addr().String())
	inner, err := s.listen(host)
	if err != nil {
		return err
	}
	echo, err := s.listen(host)
	if err != nil {
		return err
	}

	config := streaming.DefaultConfig
	config.BaseURL = &url.URL{Scheme: "http", Host: inner.Addr().String(), Path: "/"}
	s.streams, err = streaming.NewServer(config, &container{log: s.log, echo: echo.Addr().String()})
	if err != nil {
		return fmt.Errorf("set up the CRI streaming server: %w", err)
	}

	tlsConfig := &tls.Config{Certificates: []tls.Certificate{opts.Certificate}, MinVersion: tls.VersionTLS12}
	if opts.ClientCAs != nil {
		tlsConfig.ClientCAs, tlsConfig.ClientAuth = opts.ClientCAs, tls.RequireAndVerifyClientCert
	}
	kubelet := s.httpServer(ctx, s.handler())
	kubelet.TLSConfig = tlsConfig
	cri := s.httpServer(ctx, s.streams)
	s.serve(func() error { return kubelet.ServeTLS(outer, "", "") })
	s.serve(func() error { return cri.Serve(inner) })
	s.serve(func() error { return serveEcho(echo) })
	return nil
}

func (s *Server) listen(host netip.Addr) (*trackedListener, error) {
	l, err := net.Listen("tcp", netip.AddrPortFrom(host, 0).String())
	if err != nil {
		return nil, fmt.Errorf("listen for the stand-in kubelet: %w", err)
	}
	t := &trackedListener{Listener: l, conns: map[net.Conn]struct{}{}}
	s.listeners = append(s.listeners, t)
	return t, nil
}

func (s *Server) httpServer(ctx context.Context, h http.Handler) *http.Server {
	return &http.Server{
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if !s.begin() {
				http.Error(w, "the stand-in kubelet is being stopped", http.StatusServiceUnavailable)
				return
			}
			defer s.done.Done()
			h.ServeHTTP(w, r)
		}),
		// A hijacked connection's context ends with this one only.
		BaseContext: func(net.Listener) context.Context { return ctx },
		// Handshakes that end early are the callers' to report.
		ErrorLog: log.New(io.Discard, "", 0),
	}
}

func (s *Server) serve(f func() error) {
	s.done.Go(func() {
		if err := f(); err != nil && !errors.Is(err, net.ErrClosed) && !errors.Is(err, http.ErrServerClosed) {
			log.Printf("stand-in kubelet: %v", err)
		}
	})
}

// begin counts a request in, unless Close has begun to wait for them.
func (s *Server) begin() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return false
	}
	s.done.Add(1)
	return true
}

// Address is where the stand-in listens: what a Node object tells of its kubelet.
func (s *Server) Address() netip.AddrPort { return s.address }

// Requests tells how many requests of each kind have arrived.
func (s *Server) Requests() map[Request]int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return maps.Clone(s.requests)
}

func (s *Server) count(r Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.requests[r]++
}

// Close cuts every stream and waits until nothing of the server runs any more.
func (s *Server) Close() {
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	s.end()
	for _, l := range s.listeners {
		l.Close() //nolint:errcheck // nothing is lost with a listener that closes badly
	}
	s.done.Wait()
}
