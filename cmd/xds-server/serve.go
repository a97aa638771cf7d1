package main

import (
	"context"
	"fmt"

	"github.com/go-logr/zapr"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/cobra"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"golang.org/x/sync/errgroup"
	"k8s.io/klog/v2"

	"xds-server/pkg/admin"
	"xds-server/pkg/config"
	"xds-server/pkg/discovery"
	"xds-server/pkg/extproc"
	"xds-server/pkg/peers"
	"xds-server/pkg/snapshot"
	"xds-server/pkg/tables"
	"xds-server/pkg/xds"
)

func serveCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "serve",
		Short: "Run the control plane",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := config.Load(cmd.Flags())
			if err != nil {
				return err
			}
			log, err := newLogger(c)
			if err != nil {
				return err
			}
			defer func() { _ = log.Sync() }()
			return serve(cmd.Context(), c, log)
		},
	}
	config.AddFlags(cmd.Flags())
	return cmd
}

// serve wires the parts together and runs them until ctx ends or one fails.
func serve(ctx context.Context, c config.Config, log *zap.Logger) error {
	xds.UseLogger(log)
	klog.SetLogger(zapr.NewLogger(log.Named("client-go")))
	v := currentVersion()
	registry := admin.NewRegistry(v.Version)

	credentials, err := discovery.NewCredentials(c.PeerCAFile, c.TLSCertFile, c.TLSPrivateKeyFile, log)
	if err != nil {
		return err
	}
	publisher := snapshot.NewPublisher(log, registry)
	var poller *discovery.Poller
	tables := tables.New(publisher, func() error { return poller.AllRead() }, c.Hold, log, registry)
	publisher.OnNode(tables.Connected)
	known := newKnownDocuments(log, registry)
	source, leases, err := serverSource(c, log, registry, tables.Evidence)
	if err != nil {
		return err
	}
	poller = discovery.NewPoller(discovery.Options{
		Source: source, Credentials: credentials,
		Interval: c.PollInterval, Timeout: c.PollTimeout, Hold: c.Hold,
		Local: c.NodeName, LocalAddress: c.LocalAddress,
		OnChange: tables.Observe, Log: log, Registerer: registry,
	})
	known.poller = poller
	tables.OnDocuments(known.set)
	adminServer, err := admin.New(admin.Config{
		Address: c.AdminAddress, Metrics: registry, Log: log,
		Ready: []admin.Check{{Name: "views", Run: poller.AllRead}},
	})
	if err != nil {
		return err
	}
	server, err := xds.New(xds.Config{
		Socket: c.Socket, Address: c.Listen, AllowedNames: c.ListenAllowedNames,
		TLS:       xds.TLSFiles{Cert: c.TLSCertFile, Key: c.TLSPrivateKeyFile, ClientCA: c.ListenClientCAFile},
		Publisher: publisher, Log: log,
		Register: extproc.New(known, log, registry).Register, Health: known.health,
	})
	if err != nil {
		return err
	}

	group, ctx := errgroup.WithContext(ctx)
	for _, run := range []func(context.Context) error{poller.Run, server.Run, adminServer.Run, leases} {
		group.Go(func() error { return run(ctx) })
	}
	if err := group.Wait(); err != nil {
		log.Error("stopped", zap.Error(err))
		return err
	}
	log.Info("stopped")
	return nil
}

// serverSource is where the servers come from and, where the cluster itself is read, what watches the identity leases:
// evidence of servers that the source does not list, of which nothing can be known.
func serverSource(c config.Config, log *zap.Logger, registry prometheus.Registerer, evidence func([]string)) (peers.Source, func(context.Context) error, error) {
	if !c.EndpointSlice.Enabled {
		return peers.Static(c.StaticServers()), func(context.Context) error { return nil }, nil
	}
	client, err := peers.ClientConfig(c.EndpointSlice.Kubeconfig)
	if err != nil {
		return nil, nil, err
	}
	metrics := peers.NewMetrics(registry)
	leases := peers.Leases{Client: client, Log: log, Metrics: metrics}
	source := peers.EndpointSlice{
		Client: client, Port: c.EndpointSlice.PeerPort, Direct: c.EndpointSlice.Direct, Names: c.EndpointSlice.AddressNames(),
		Log: log, Metrics: metrics,
	}
	return source, func(ctx context.Context) error { return leases.Run(ctx, evidence) }, nil
}

func newLogger(c config.Config) (*zap.Logger, error) {
	level, err := zapcore.ParseLevel(c.LogLevel)
	if err != nil {
		return nil, fmt.Errorf("logLevel: %w", err)
	}
	zc := zap.NewProductionConfig()
	zc.Level, zc.Encoding = zap.NewAtomicLevelAt(level), c.LogFormat
	zc.DisableStacktrace = true
	zc.EncoderConfig.EncodeTime = zapcore.ISO8601TimeEncoder
	return zc.Build()
}
