// Package envoy renders a node's static Envoy bootstrap: listeners, TLS, identity and the local server. What changes
// while a cluster lives comes from xds-server instead (packages snapshot and xds).
package envoy

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/net/http/httpguts"
	"k8s.io/apimachinery/pkg/util/validation"
)

// Options is what a bootstrap is made of. The defaults are kubeadm's paths, so that a node's name and address are
// enough.
type Options struct {
	// NodeName is the node's name to Envoy (node.id) and to xds-server.
	NodeName string
	// FrontAddress is where clients connect, IP:port.
	FrontAddress string
	// ExtraAddresses are further addresses of the front, such as a virtual IP, each IP:port.
	ExtraAddresses []string
	// ProxyProtocol makes the front expect a PROXY protocol header on every connection.
	ProxyProtocol bool
	// PeerAddress is where Envoys and xds-servers of other nodes connect, IP:port.
	PeerAddress string
	// LocalAddress is the node's kube-apiserver, IP:port.
	LocalAddress string
	// AdminAddress is Envoy's admin endpoint: unix:PATH or a loopback IP:port.
	AdminAddress string
	// Socket is the unix socket of the node's xds-server.
	Socket string
	// XDSPeers are other nodes' xds-servers, IP:port, used when the node's own can't be reached.
	XDSPeers []string
	// SecretsDir is where Envoy finds its SDS files (see Secrets).
	SecretsDir string

	// ServingCertFile and ServingKeyFile are what the front and the peer listener present.
	ServingCertFile, ServingKeyFile string
	// ClientCAFile verifies client certificates, as kube-apiserver's --client-ca-file.
	ClientCAFile string
	// ServerCAFile verifies the serving certificates of apiservers, peer listeners and xds-servers.
	ServerCAFile string
	// FrontProxyCertFile and FrontProxyKeyFile are presented to apiservers and peer listeners.
	FrontProxyCertFile, FrontProxyKeyFile string
	// FrontProxyCAFile verifies the front-proxy certificates of other nodes' Envoys.
	FrontProxyCAFile string
	// UsernameHeaders, GroupHeaders, UIDHeaders and ExtraHeadersPrefixes are what the apiserver takes an identity from, as
	// its --requestheader-* flags have it. A client's own are removed; the front itself writes X-Remote-*.
	UsernameHeaders, GroupHeaders, UIDHeaders, ExtraHeadersPrefixes []string
	// AllowedNames are the names that a front-proxy certificate may have, as --requestheader-allowed-names.
	AllowedNames []string
	// XDSServerNames are the names that an xds-server's own client certificate may have.
	XDSServerNames []string
}

// Defaults is a bootstrap for kubeadm's layout; NodeName and FrontAddress are still to be set.
func Defaults() Options {
	return Options{
		LocalAddress:       "127.0.0.1:6443",
		AdminAddress:       "unix:/run/xds-server/envoy-admin.sock",
		Socket:             "/run/xds-server/xds.sock",
		SecretsDir:         "/etc/xds-server/envoy",
		ServingCertFile:    "/etc/kubernetes/pki/apiserver.crt",
		ServingKeyFile:     "/etc/kubernetes/pki/apiserver.key",
		ClientCAFile:       "/etc/kubernetes/pki/ca.crt",
		ServerCAFile:       "/etc/kubernetes/pki/ca.crt",
		FrontProxyCertFile: "/etc/kubernetes/pki/front-proxy-client.crt",
		FrontProxyKeyFile:  "/etc/kubernetes/pki/front-proxy-client.key",
		FrontProxyCAFile:   "/etc/kubernetes/pki/front-proxy-ca.crt",
		UsernameHeaders:    []string{"X-Remote-User"},
		GroupHeaders:       []string{"X-Remote-Group"},
		UIDHeaders:         []string{"X-Remote-Uid"},

		ExtraHeadersPrefixes: []string{"X-Remote-Extra-"},

		AllowedNames:   []string{"front-proxy-client"},
		XDSServerNames: []string{"system:xds-server"},
	}
}

// Default ports of a node's listeners.
const (
	FrontPort = "6443"
	PeerPort  = "6445"
)

// Complete fills in what follows from other fields: ports, and the peer listener's address from the front's.
func (o Options) Complete() Options {
	if o.FrontAddress != "" && !hasPort(o.FrontAddress) {
		o.FrontAddress = net.JoinHostPort(o.FrontAddress, FrontPort)
	}
	if o.PeerAddress == "" {
		if host, _, err := net.SplitHostPort(o.FrontAddress); err == nil {
			o.PeerAddress = host
		}
	}
	if o.PeerAddress != "" && !hasPort(o.PeerAddress) {
		o.PeerAddress = net.JoinHostPort(o.PeerAddress, PeerPort)
	}
	_, port, _ := net.SplitHostPort(o.FrontAddress)
	extra := make([]string, len(o.ExtraAddresses))
	for i, a := range o.ExtraAddresses {
		if !hasPort(a) {
			a = net.JoinHostPort(a, port)
		}
		extra[i] = a
	}
	o.ExtraAddresses = extra
	return o
}

func hasPort(a string) bool {
	_, _, err := net.SplitHostPort(a)
	return err == nil
}

// Validate finds what can't make a working front, naming the flag of `xds-server bootstrap` that sets it. It does not
// look at files (see CheckFiles).
func (o Options) Validate() error {
	var errs []error
	bad := func(flag, value, why string) {
		errs = append(errs, fmt.Errorf("--%s %q: %s", flag, value, why))
	}
	if o.NodeName == "" {
		bad("node-name", "", "is required: the node's name, as xds-server's configuration has it")
	} else if msgs := validation.IsDNS1123Subdomain(o.NodeName); len(msgs) > 0 && net.ParseIP(o.NodeName) == nil {
		bad("node-name", o.NodeName, "is neither a DNS-1123 subdomain nor an IP address")
	}
	address := func(flag, a string) netip.AddrPort {
		ap, err := netip.ParseAddrPort(a)
		if err != nil || ap.Port() == 0 {
			bad(flag, a, "is not IP:port")
		}
		return ap
	}
	front, peer := address("address", o.FrontAddress), address("peer-address", o.PeerAddress)
	local := address("local-address", o.LocalAddress)
	taken := map[netip.AddrPort]string{}
	claim := func(flag string, a netip.AddrPort) {
		if other, ok := taken[a]; ok && a.IsValid() {
			bad(flag, a.String(), "is the same as --"+other)
		}
		taken[a] = flag
	}
	claim("local-address", local)
	claim("address", front)
	claim("peer-address", peer)
	for _, a := range o.ExtraAddresses {
		claim("extra-address", address("extra-address", a))
	}
	if front.Addr().IsUnspecified() && front.Port() == local.Port() {
		bad("address", o.FrontAddress, "a wildcard address collides with the apiserver's loopback address on the same port")
	}
	for _, a := range o.XDSPeers {
		address("xds-peer", a)
	}
	if path, ok := strings.CutPrefix(o.AdminAddress, "unix:"); ok {
		if !filepath.IsAbs(path) {
			bad("admin-address", o.AdminAddress, "is not an absolute path")
		}
	} else if ap := address("admin-address", o.AdminAddress); ap.IsValid() && !ap.Addr().IsLoopback() {
		bad("admin-address", o.AdminAddress, "must be on loopback or a unix socket: whoever reaches Envoy's admin can stop it")
	}
	for flag, path := range o.paths() {
		if !filepath.IsAbs(path) {
			bad(flag, path, "is not an absolute path")
		}
	}
	for _, h := range o.requestHeaders() {
		if !slices.ContainsFunc(h.names, func(n string) bool { return strings.EqualFold(n, h.ours) }) {
			bad(h.flag, strings.Join(h.names, ","), "must have "+h.ours+", which the front writes; the apiserver's flag too")
		}
		for _, n := range h.names {
			if !httpguts.ValidHeaderFieldName(n) {
				bad(h.flag, n, "is no name of a header")
			}
		}
	}
	if len(o.AllowedNames) == 0 {
		bad("requestheader-allowed-names", "", "is required: without it any certificate of the front-proxy CA could act as any user")
	}
	if len(o.XDSServerNames) == 0 {
		bad("xds-server-names", "", "is required: the name in xds-server's own client certificate")
	}
	return errors.Join(errs...)
}

// requestHeaders is what the apiserver takes an identity from, and which of it the front writes.
func (o Options) requestHeaders() []requestHeader {
	return []requestHeader{
		{"requestheader-username-headers", "X-Remote-User", o.UsernameHeaders},
		{"requestheader-group-headers", "X-Remote-Group", o.GroupHeaders},
		{"requestheader-uid-headers", "X-Remote-Uid", o.UIDHeaders},
		{"requestheader-extra-headers-prefix", "X-Remote-Extra-", o.ExtraHeadersPrefixes},
	}
}

type requestHeader struct {
	flag, ours string
	names      []string
}

// paths is every file and directory by the flag that names it.
func (o Options) paths() map[string]string {
	return map[string]string{
		"socket": o.Socket, "secrets-dir": o.SecretsDir,
		"serving-cert-file": o.ServingCertFile, "serving-key-file": o.ServingKeyFile,
		"client-ca-file": o.ClientCAFile, "server-ca-file": o.ServerCAFile,
		"proxy-client-cert-file": o.FrontProxyCertFile, "proxy-client-key-file": o.FrontProxyKeyFile,
		"requestheader-client-ca-file": o.FrontProxyCAFile,
	}
}

// port is the number of a port that was validated.
func port(s string) int {
	n, _ := strconv.Atoi(s)
	return n
}
