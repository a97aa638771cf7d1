package lab

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"path/filepath"
)

// Envoy is the node's Envoy with a complete bootstrap file. It is ready when it
// says so on its admin interface, which the bootstrap has to put on the node's
// AdminSocket.
func (n *Node) Envoy(bootstrap string, extra ...string) *Process {
	client := socketClient(n.AdminSocket)
	return n.lab.add(&Process{
		Name:     "envoy of " + n.Name,
		Log:      filepath.Join(n.Dir, "envoy.log"),
		hostname: n.Name,
		argv: func() []string {
			// Hot restart would leave shared memory behind.
			return append([]string{Envoy.Path(), "--config-path", bootstrap, "--concurrency", "1", "--disable-hot-restart"}, extra...)
		},
		ready: func(ctx context.Context) error {
			a, err := Call(ctx, client, http.MethodGet, "http://envoy/ready", "", nil)
			return a.want(http.StatusOK, err)
		},
	})
}

// EnvoyAdmin asks the admin interface of the node's Envoy.
func (n *Node) EnvoyAdmin(ctx context.Context, method, path string) ([]byte, error) {
	a, err := Call(ctx, socketClient(n.AdminSocket), method, "http://envoy"+path, "", nil)
	if err := a.want(http.StatusOK, err); err != nil {
		return nil, fmt.Errorf("asking the Envoy of %s for %s: %w", n.Name, path, err)
	}
	return a.Body, nil
}

func socketClient(path string) *http.Client {
	return &http.Client{Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", path)
		},
	}}
}

// XDSServer is an xds-server on the node, run with args. It is ready when the
// URL answers 200.
func (n *Node) XDSServer(readyURL string, args ...string) *Process {
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	return n.lab.add(&Process{
		Name:     "xds-server of " + n.Name,
		Log:      filepath.Join(n.Dir, "xds-server.log"),
		hostname: n.Name,
		argv:     func() []string { return append([]string{XDSServer.Path()}, args...) },
		ready: func(ctx context.Context) error {
			a, err := Call(ctx, client, http.MethodGet, readyURL, "", nil)
			return a.want(http.StatusOK, err)
		},
	})
}

// ControllerManager is a kube-controller-manager on the node that uses the API
// at url, with the intervals at which it looks for new resources as they are.
func (n *Node) ControllerManager(version, url string, extra ...string) (*Process, error) {
	cred, err := n.lab.NewClientCertificate("system:kube-controller-manager")
	if err != nil {
		return nil, err
	}
	kubeconfig, err := n.lab.Kubeconfig(url, cred)
	if err != nil {
		return nil, err
	}
	pki := func(name string) string { return filepath.Join(n.PKI, name) }
	host, _, err := net.SplitHostPort(n.Direct)
	if err != nil {
		return nil, err
	}
	health := fmt.Sprintf("https://%s:10257/healthz", host)
	client := n.lab.Client(Anonymous, HTTP1)
	return n.lab.add(&Process{
		Name:     "kube-controller-manager of " + n.Name,
		Log:      filepath.Join(n.Dir, "kube-controller-manager.log"),
		hostname: n.Name,
		argv: func() []string {
			return append([]string{
				KubeControllerManager(version).Path(),
				"--bind-address=" + host,
				"--authentication-kubeconfig=" + kubeconfig,
				"--authorization-kubeconfig=" + kubeconfig,
				"--kubeconfig=" + kubeconfig,
				"--client-ca-file=" + pki("ca.crt"),
				"--cluster-signing-cert-file=" + pki("ca.crt"),
				"--cluster-signing-key-file=" + pki("ca.key"),
				"--requestheader-client-ca-file=" + pki("front-proxy-ca.crt"),
				"--root-ca-file=" + pki("ca.crt"),
				"--service-account-private-key-file=" + pki("sa.key"),
				"--tls-cert-file=" + pki("apiserver.crt"),
				"--tls-private-key-file=" + pki("apiserver.key"),
				"--use-service-account-credentials=true",
			}, extra...)
		},
		ready: func(ctx context.Context) error {
			a, err := Call(ctx, client, http.MethodGet, health, "", nil)
			return a.want(http.StatusOK, err)
		},
	}), nil
}
