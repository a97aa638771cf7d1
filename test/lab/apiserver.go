package lab

import (
	"context"
	"net"
	"net/http"
	"path/filepath"
	"strings"
)

// An APIServer is one node's kube-apiserver. Its fields are read when it
// starts: change them while it does not run.
type APIServer struct {
	*Process
	Version       string
	RuntimeConfig []string
	ExtraArgs     []string

	node *Node
}

func newAPIServer(n *Node, c NodeConfig) *APIServer {
	s := &APIServer{Version: c.Version, RuntimeConfig: c.RuntimeConfig, ExtraArgs: c.ExtraArgs, node: n}
	client := n.lab.Client(n.lab.Admin(), HTTP1) // a server may refuse the anonymous
	s.Process = n.lab.add(&Process{
		Name:     "kube-apiserver of " + n.Name,
		Log:      filepath.Join(n.Dir, "kube-apiserver.log"),
		hostname: n.Name,
		argv:     s.argv,
		ready: func(ctx context.Context) error {
			a, err := Call(ctx, client, http.MethodGet, n.DirectURL()+"/readyz", "", nil)
			return a.want(http.StatusOK, err)
		},
	})
	return s
}

// argv is what kubeadm renders, and what this project asks for besides.
func (s *APIServer) argv() []string {
	n := s.node
	pki := func(name string) string { return filepath.Join(n.PKI, name) }
	host, port, _ := net.SplitHostPort(n.Direct)
	args := []string{
		KubeAPIServer(s.Version).Path(),
		"--advertise-address=" + n.IP,
		"--allow-privileged=true",
		"--authorization-mode=Node,RBAC",
		"--client-ca-file=" + pki("ca.crt"),
		"--enable-admission-plugins=NodeRestriction",
		"--enable-bootstrap-token-auth=true",
		"--etcd-cafile=" + pki("etcd/ca.crt"),
		"--etcd-certfile=" + pki("apiserver-etcd-client.crt"),
		"--etcd-keyfile=" + pki("apiserver-etcd-client.key"),
		"--etcd-servers=" + n.lab.etcdURL(),
		"--kubelet-client-certificate=" + pki("apiserver-kubelet-client.crt"),
		"--kubelet-client-key=" + pki("apiserver-kubelet-client.key"),
		"--kubelet-preferred-address-types=InternalIP,ExternalIP,Hostname",
		"--proxy-client-cert-file=" + pki("front-proxy-client.crt"),
		"--proxy-client-key-file=" + pki("front-proxy-client.key"),
		"--requestheader-allowed-names=front-proxy-client",
		"--requestheader-client-ca-file=" + pki("front-proxy-ca.crt"),
		"--requestheader-extra-headers-prefix=X-Remote-Extra-",
		"--requestheader-group-headers=X-Remote-Group",
		"--requestheader-username-headers=X-Remote-User",
		"--secure-port=" + port,
		"--service-account-issuer=https://kubernetes.default.svc.cluster.local",
		"--service-account-key-file=" + pki("sa.pub"),
		"--service-account-signing-key-file=" + pki("sa.key"),
		"--service-cluster-ip-range=10.96.0.0/16",
		"--tls-cert-file=" + pki("apiserver.crt"),
		"--tls-private-key-file=" + pki("apiserver.key"),

		"--bind-address=" + host,
		"--requestheader-uid-headers=X-Remote-Uid",
		"--token-auth-file=" + n.lab.tokenFile(),
		"--audit-policy-file=" + n.lab.auditPolicy(),
		"--audit-log-path=" + n.auditLog(),
	}
	if len(s.RuntimeConfig) > 0 {
		args = append(args, "--runtime-config="+strings.Join(s.RuntimeConfig, ","))
	}
	return append(args, s.ExtraArgs...)
}

// Restart stops the server gracefully and starts it at a version, which may be
// the same; then it waits until it is ready.
func (s *APIServer) Restart(ctx context.Context, version string) error {
	if err := s.Stop(ctx); err != nil {
		return err
	}
	s.Version = version
	if err := s.Start(); err != nil {
		return err
	}
	return s.WaitReady(ctx)
}
