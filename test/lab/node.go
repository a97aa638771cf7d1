package lab

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
)

// A Node is one control-plane machine: its addresses, its files, and what runs
// on it, all under its own hostname.
type Node struct {
	Name string
	Dir  string // also the place for whatever a test writes
	PKI  string // laid out like /etc/kubernetes/pki
	IP   string // the node's address, which is also what its server advertises

	// Addresses as host:port. Nothing but the server listens by itself; the
	// front and the peer listener are for the node's Envoy to take.
	Front  string
	Direct string
	Peer   string
	// Unix sockets, for xds-server and for Envoy's admin interface.
	XDSSocket   string
	AdminSocket string

	Server *APIServer

	lab   *Lab
	later bool
}

// AddNode adds a node. Its kube-apiserver is started by the lab's Start, or by
// the test if the lab runs already.
func (l *Lab) AddNode(c NodeConfig) (*Node, error) {
	i := len(l.Nodes) + 1
	if c.Name == "" {
		c.Name = fmt.Sprintf("node-%d", i)
	}
	ip, direct := l.address(10, 0, 10+i), l.address(127, 0, 10+i)
	dir := filepath.Join(l.Dir, c.Name)
	n := &Node{
		Name:        c.Name,
		Dir:         dir,
		PKI:         filepath.Join(dir, "pki"),
		IP:          ip.String(),
		Front:       ip.String() + ":6443",
		Direct:      direct.String() + ":6443",
		Peer:        ip.String() + ":6445",
		XDSSocket:   filepath.Join(dir, "xds.sock"),
		AdminSocket: filepath.Join(dir, "admin.sock"),
		lab:         l,
		later:       c.Later,
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	service := net.IPv4(10, 96, 0, 1)
	if err := l.PKI.WriteNode(n.PKI, n.Name, ip, direct, net.IPv4(127, 0, 0, 1), service); err != nil {
		return nil, fmt.Errorf("writing the certificates of %s: %w", n.Name, err)
	}
	n.Server = newAPIServer(n, c)
	l.Nodes = append(l.Nodes, n)
	return n, nil
}

// FrontURL is where the node's Envoy answers clients.
func (n *Node) FrontURL() string { return "https://" + n.Front }

// DirectURL is where the node's kube-apiserver answers by itself.
func (n *Node) DirectURL() string { return "https://" + n.Direct }
