// Package plane puts Envoys and xds-servers in front of a lab's kube-apiservers, the way an operator would: with the
// output of `xds-server bootstrap` and a configuration file, and nothing else.
package plane

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
	"sigs.k8s.io/yaml"

	"xds-server/test/lab"
)

// Options change how the plane is set up; the zero value is the recommended topology.
type Options struct {
	// Direct reaches peers at their kube-apiserver's own port instead of their Envoy's peer listener.
	Direct bool
	// EndpointSlice finds the servers in the cluster instead of a static list.
	EndpointSlice bool
	// Failover gives every Envoy the other nodes' xds-servers too.
	Failover bool
	// Bootstrap are further arguments of `xds-server bootstrap`.
	Bootstrap []string
	// Edit changes a node's rendered bootstrap before Envoy reads it: for tests that remove a safeguard.
	Edit func(string) string
	// NoXDSServer leaves the xds-servers for the test to start.
	NoXDSServer bool
	// PollInterval is xds-server's; default 1s.
	PollInterval time.Duration
}

// A Plane is the Envoys and xds-servers of a lab.
type Plane struct {
	Lab   *lab.Lab
	Nodes map[string]*Node

	options Options
}

// Node is one node's Envoy and xds-server.
type Node struct {
	*lab.Node
	Envoy, XDSServer *lab.Process
	// Bootstrap is Envoy's configuration file, Config is xds-server's.
	Bootstrap, Config string
	// XDSAddress is where other nodes' Envoys reach this xds-server, AdminURL where it tells of itself.
	XDSAddress, AdminURL string
}

// New writes every file of the plane. Nothing runs yet.
func New(ctx context.Context, l *lab.Lab, o Options) (*Plane, error) {
	p := &Plane{Lab: l, Nodes: map[string]*Node{}, options: o}
	for _, n := range l.Nodes {
		p.Nodes[n.Name] = p.node(n)
	}
	for _, n := range p.Nodes {
		if err := p.writeConfig(n); err != nil {
			return nil, fmt.Errorf("configuring the xds-server of %s: %w", n.Name, err)
		}
		if err := p.writeBootstrap(ctx, n); err != nil {
			return nil, fmt.Errorf("rendering the bootstrap of %s: %w", n.Name, err)
		}
		n.Envoy = n.Node.Envoy(n.Bootstrap)
		n.XDSServer = n.Node.XDSServer(n.AdminURL+"/readyz", "serve", "--config", n.Config)
	}
	return p, nil
}

// Start makes a plane, starts it, and waits until every front routes and, if every kube-apiserver runs, knows them all.
func Start(ctx context.Context, l *lab.Lab, o Options) (*Plane, error) {
	p, err := New(ctx, l, o)
	if err != nil {
		return nil, err
	}
	for _, n := range p.Nodes {
		if !o.NoXDSServer {
			if err := n.XDSServer.Start(); err != nil {
				return nil, err
			}
		}
		if err := n.Envoy.Start(); err != nil {
			return nil, err
		}
	}
	if o.NoXDSServer {
		return p, nil
	}
	if err := p.WaitReady(ctx); err != nil {
		return p, err
	}
	for _, n := range p.Nodes {
		if !n.Server.Running() {
			return p, nil
		}
	}
	if slices.Contains(o.Bootstrap, "--proxy-protocol") {
		return p, nil // only the test's own clients can talk to these fronts
	}
	return p, p.WaitComplete(ctx)
}

// WaitComplete waits until every front answers for all servers: until each was read, an API that nobody serves is 503.
func (p *Plane) WaitComplete(ctx context.Context) error {
	client := p.Lab.Client(p.Lab.Admin(), lab.HTTP1)
	defer client.CloseIdleConnections()
	for _, n := range p.Nodes {
		err := Eventually(ctx, "the front of "+n.Name+" knows every server", func() error {
			a, err := lab.Call(ctx, client, "GET", n.FrontURL()+"/apis/nobody.example.com/v1/things", "", nil)
			if err == nil && a.Status != 404 {
				err = fmt.Errorf("an API that nobody serves is answered %d: %s", a.Status, a.Body)
			}
			return err
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// WaitReady waits until every xds-server is ready and every front is on its routed chain.
func (p *Plane) WaitReady(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	for _, n := range p.Nodes {
		g.Go(func() error {
			if err := n.XDSServer.WaitReady(ctx); err != nil {
				return err
			}
			if err := n.Envoy.WaitReady(ctx); err != nil {
				return err
			}
			return n.WaitRouted(ctx)
		})
	}
	return g.Wait()
}

func (p *Plane) node(n *lab.Node) *Node {
	loopback, _, _ := net.SplitHostPort(n.Direct)
	return &Node{
		Node:       n,
		Bootstrap:  filepath.Join(n.Dir, "envoy.yaml"),
		Config:     filepath.Join(n.Dir, "xds-server.yaml"),
		XDSAddress: n.IP + ":9443",
		AdminURL:   "http://" + loopback + ":9985",
	}
}

func (p *Plane) writeConfig(n *Node) error {
	pki := func(name string) string { return filepath.Join(n.PKI, name) }
	interval := p.options.PollInterval
	if interval == 0 {
		interval = time.Second
	}
	config := map[string]any{
		"nodeName":           n.Name,
		"localAddress":       n.Direct,
		"peerCAFile":         pki("ca.crt"),
		"tlsCertFile":        pki("xds-server.crt"),
		"tlsPrivateKeyFile":  pki("xds-server.key"),
		"socket":             n.XDSSocket,
		"listen":             n.XDSAddress,
		"listenClientCAFile": pki("front-proxy-ca.crt"),
		"adminAddress":       strings.TrimPrefix(n.AdminURL, "http://"),
		"pollInterval":       interval.String(),
	}
	if p.options.EndpointSlice {
		names := map[string]string{}
		for _, other := range p.Nodes {
			names[other.IP] = other.Name
		}
		credential, err := p.Lab.NewClientCertificate(lab.XDSServerUser)
		if err != nil {
			return err
		}
		kubeconfig, err := p.Lab.Kubeconfig(n.DirectURL(), credential)
		if err != nil {
			return err
		}
		config["endpointSlice"] = map[string]any{"enabled": true, "names": names, "kubeconfig": kubeconfig}
	} else {
		var servers []any
		for _, other := range p.Lab.Nodes {
			address := other.Peer
			if p.options.Direct {
				address = other.Direct
			}
			servers = append(servers, map[string]any{"name": other.Name, "address": address, "direct": p.options.Direct})
		}
		config["servers"] = servers
	}
	b, err := yaml.Marshal(config)
	if err != nil {
		return err
	}
	return os.WriteFile(n.Config, b, 0o644)
}

func (p *Plane) writeBootstrap(ctx context.Context, n *Node) error {
	pki := func(name string) string { return filepath.Join(n.PKI, name) }
	args := []string{
		"bootstrap", "--node-name", n.Name, "--address", n.Front, "--peer-address", n.Peer, "--local-address", n.Direct,
		"--admin-address", "unix:" + n.AdminSocket, "--socket", n.XDSSocket, "--secrets-dir", filepath.Join(n.Dir, "sds"),
		"--serving-cert-file", pki("apiserver.crt"), "--serving-key-file", pki("apiserver.key"),
		"--client-ca-file", pki("ca.crt"), "--server-ca-file", pki("ca.crt"),
		"--proxy-client-cert-file", pki("front-proxy-client.crt"), "--proxy-client-key-file", pki("front-proxy-client.key"),
		"--requestheader-client-ca-file", pki("front-proxy-ca.crt"),
	}
	if p.options.Failover {
		for _, other := range p.Nodes {
			if other.Name != n.Name {
				args = append(args, "--xds-peer", other.XDSAddress)
			}
		}
	}
	args = append(args, p.options.Bootstrap...)
	cmd := exec.CommandContext(ctx, lab.XDSServer.Path(), args...)
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return fmt.Errorf("%w: %s", err, stderr.String())
	}
	if p.options.Edit != nil {
		edited := p.options.Edit(string(out))
		if edited == string(out) {
			return errors.New("the edit changed nothing")
		}
		out = []byte(edited)
	}
	return os.WriteFile(n.Bootstrap, out, 0o644)
}

// WaitRouted waits until new connections to the node's front meet its routed chain.
func (n *Node) WaitRouted(ctx context.Context) error {
	return Eventually(ctx, "the front of "+n.Name+" routes", func() error {
		ready, err := n.Routed(ctx)
		if err == nil && !ready {
			err = errors.New("peer_routing.ready is not 100")
		}
		return err
	})
}

// Routed says whether new connections to the node's front meet its routed chain.
func (n *Node) Routed(ctx context.Context) (bool, error) {
	b, err := n.EnvoyAdmin(ctx, "GET", "/runtime")
	if err != nil {
		return false, err
	}
	var runtime struct {
		Entries map[string]struct {
			FinalValue string `json:"final_value"`
		} `json:"entries"`
	}
	if err := json.Unmarshal(b, &runtime); err != nil {
		return false, fmt.Errorf("reading the runtime of the Envoy of %s: %w", n.Name, err)
	}
	return runtime.Entries["peer_routing.ready"].FinalValue == "100", nil
}

// Eventually asks until the answer is nil, and gives the last error when ctx ends.
func Eventually(ctx context.Context, what string, ask func() error) error {
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		err := ask()
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("waiting until %s: %w", what, err)
		case <-tick.C:
		}
	}
}
