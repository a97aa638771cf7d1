package config

import (
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/validation"

	"xds-server/pkg/peers"
)

// Validate checks everything that can be checked at the start, files included, and gives the first fault found.
func (c Config) Validate() error {
	for _, check := range []func() error{
		c.checkServers, c.checkEndpointSlice, c.checkLocal, c.checkListeners, c.checkTimes, c.checkLogs, c.checkFiles,
	} {
		if err := check(); err != nil {
			return err
		}
	}
	return nil
}

func (c Config) checkServers() error {
	switch {
	case len(c.Servers) > 0 && c.EndpointSlice.Enabled:
		return errors.New("servers and endpointSlice.enabled are both set: the kube-apiservers come from one or the other; remove one")
	case len(c.Servers) == 0 && !c.EndpointSlice.Enabled:
		return errors.New("no kube-apiservers: list them in servers, or set endpointSlice.enabled to find them in the cluster")
	case len(c.Servers) > peers.MaxServers:
		return fmt.Errorf("servers: %d is more than the %d that xds-server supports", len(c.Servers), peers.MaxServers)
	}
	byName, byAddress := map[string]int{}, map[string]int{}
	for i, s := range c.Servers {
		if s.Name == "" {
			return fmt.Errorf("servers[%d] (address %q): name is missing; set it to the node's name", i, s.Address)
		}
		if err := CheckNodeName(s.Name); err != nil {
			return fmt.Errorf("servers[%d].name: %w", i, err)
		}
		if s.Address == "" {
			return fmt.Errorf("servers[%d] (name %q): address is missing; set it to host:port", i, s.Name)
		}
		if err := CheckAddress(s.Address); err != nil {
			return fmt.Errorf("servers[%d].address (name %q): %w", i, s.Name, err)
		}
		if _, err := netip.ParseAddrPort(s.Address); err != nil {
			return fmt.Errorf("servers[%d].address (name %q): %q is not IP:port; Envoy is given addresses, not names", i, s.Name, s.Address)
		}
		if j, twice := byName[s.Name]; twice {
			return fmt.Errorf("servers[%d] and servers[%d] have the same name %q; node names are unique", j, i, s.Name)
		}
		if j, twice := byAddress[canonical(s.Address)]; twice {
			return fmt.Errorf("servers[%d] (%s) and servers[%d] (%s) have the same address %s", j, c.Servers[j].Name, i, s.Name, s.Address)
		}
		byName[s.Name], byAddress[canonical(s.Address)] = i, i
	}
	return nil
}

func (c Config) checkEndpointSlice() error {
	if !c.EndpointSlice.Enabled {
		if len(c.EndpointSlice.Names) > 0 {
			return errors.New("endpointSlice.names is set without endpointSlice.enabled; set both, or put the names into servers")
		}
		return nil
	}
	if p := c.EndpointSlice.PeerPort; p < 1 || p > 65535 {
		return fmt.Errorf("endpointSlice.peerPort: %d is no port; give the port of the nodes' Envoy peer listeners", p)
	}
	addresses, byName := map[netip.Addr]string{}, map[string]string{}
	for _, address := range slices.Sorted(maps.Keys(c.EndpointSlice.Names)) {
		name := c.EndpointSlice.Names[address]
		a, err := netip.ParseAddr(address)
		if err != nil {
			return fmt.Errorf("endpointSlice.names: %q is no IP address", address)
		}
		a = a.Unmap()
		if err := CheckNodeName(name); err != nil {
			return fmt.Errorf("endpointSlice.names[%s]: %w", address, err)
		}
		// A server without a name here is named by its address, so an address must not name another server.
		if ip, err := netip.ParseAddr(name); err == nil && ip.Unmap() != a {
			return fmt.Errorf("endpointSlice.names[%s]: the name %s is another server's address", address, name)
		}
		if other, twice := addresses[a]; twice {
			return fmt.Errorf("endpointSlice.names: %s and %s are the same address", other, address)
		}
		if other, twice := byName[name]; twice {
			return fmt.Errorf("endpointSlice.names: %s and %s have the same name %q; node names are unique", other, address, name)
		}
		addresses[a], byName[name] = address, address
	}
	return nil
}

func (c Config) checkLocal() error {
	if c.NodeName != "" {
		if err := CheckNodeName(c.NodeName); err != nil {
			return fmt.Errorf("nodeName: %w", err)
		}
		named := func(s Server) bool { return s.Name == c.NodeName }
		if c.EndpointSlice.Enabled && net.ParseIP(c.NodeName) == nil && !slices.Contains(slices.Collect(maps.Values(c.EndpointSlice.Names)), c.NodeName) {
			return fmt.Errorf("nodeName: there is no %q in endpointSlice.names, and a server that is not named there is named by its address; add it, or set nodeName to the address", c.NodeName)
		}
		if len(c.Servers) > 0 && !slices.ContainsFunc(c.Servers, named) {
			return fmt.Errorf("nodeName: there is no %q in servers; correct it, or add this node to servers", c.NodeName)
		}
	}
	if c.LocalAddress == "" {
		return nil
	}
	if c.NodeName == "" {
		return errors.New("localAddress is set without nodeName; set nodeName to say whose address it is")
	}
	if err := CheckAddress(c.LocalAddress); err != nil {
		return fmt.Errorf("localAddress: %w", err)
	}
	return nil
}

func (c Config) checkListeners() error {
	if c.Socket == "" && c.Listen == "" {
		return errors.New("socket and listen are both empty, so no Envoy could reach xds-server; set one")
	}
	if c.Socket != "" {
		if !filepath.IsAbs(c.Socket) {
			return fmt.Errorf("socket: %q is no absolute path", c.Socket)
		}
		if err := checkSocketPath(c.Socket); err != nil {
			return err
		}
	}
	if _, err := splitHostPort(c.AdminAddress, 0); err != nil {
		return fmt.Errorf("adminAddress: %w", err)
	}
	if c.Listen == "" {
		return nil
	}
	if _, err := splitHostPort(c.Listen, 0); err != nil {
		return fmt.Errorf("listen: %w", err)
	}
	if c.ListenClientCAFile == "" {
		return errors.New("listen is set without listenClientCAFile; set it to the CA of the nodes' front-proxy certificates")
	}
	if len(c.ListenAllowedNames) == 0 || slices.Contains(c.ListenAllowedNames, "") {
		return errors.New("listenAllowedNames: there must be at least one name, and none may be empty")
	}
	return nil
}

func (c Config) checkTimes() error {
	for _, t := range []struct {
		key   string
		value time.Duration
		least time.Duration
	}{
		// Below this, xds-server would be a load on the servers that it watches over.
		{"pollInterval", c.PollInterval, 100 * time.Millisecond},
		{"pollTimeout", c.PollTimeout, 100 * time.Millisecond},
		// A server that is read must not lose its view between two reads.
		{"hold", c.Hold, 2 * (c.PollInterval + c.PollTimeout)},
	} {
		if t.value < t.least {
			return fmt.Errorf("%s: %s is less than %s", t.key, t.value, t.least)
		}
	}
	return nil
}

func (c Config) checkLogs() error {
	if !slices.Contains([]string{"debug", "info", "warn", "error"}, c.LogLevel) {
		return fmt.Errorf("logLevel: %q is none of debug, info, warn, error", c.LogLevel)
	}
	if !slices.Contains([]string{"json", "console"}, c.LogFormat) {
		return fmt.Errorf("logFormat: %q is none of json, console", c.LogFormat)
	}
	return nil
}

func (c Config) checkFiles() error {
	for _, f := range []struct{ key, path string }{
		{"peerCAFile", c.PeerCAFile}, {"tlsCertFile", c.TLSCertFile}, {"tlsPrivateKeyFile", c.TLSPrivateKeyFile},
	} {
		if f.path == "" {
			return fmt.Errorf("%s is missing; set it in the file, or by --%s", f.key, flagOf(f.key))
		}
	}
	now := time.Now()
	if _, err := ReadCAFile(c.PeerCAFile, now); err != nil {
		return fmt.Errorf("peerCAFile: %w", err)
	}
	leaf, err := ReadKeyPair(c.TLSCertFile, c.TLSPrivateKeyFile, now)
	if err != nil {
		return fmt.Errorf("tlsCertFile, tlsPrivateKeyFile: %w", err)
	}
	if c.ListenClientCAFile != "" {
		if _, err := ReadCAFile(c.ListenClientCAFile, now); err != nil {
			return fmt.Errorf("listenClientCAFile: %w", err)
		}
		if err := DistinctCAs(c.ListenClientCAFile, c.PeerCAFile); err != nil {
			return fmt.Errorf("listenClientCAFile, peerCAFile: %w", err)
		}
	}
	return checkOwnCertificate(c, leaf)
}

func flagOf(key string) string {
	for _, s := range settings {
		if s.key == key {
			return s.flag
		}
	}
	return ""
}

// CheckNodeName says whether a node may have this name: what Kubernetes allows, or an IP address, which names a server
// for which nothing better is known.
func CheckNodeName(name string) error {
	if name == "" {
		return errors.New("the node name is empty")
	}
	if a, err := netip.ParseAddr(name); err == nil && a.Zone() == "" {
		return nil
	}
	if name == "local" {
		return errors.New("\"local\" is no node name: it is what each node's own server is called in its routes")
	}
	if errs := validation.IsDNS1123Subdomain(name); len(errs) > 0 {
		return fmt.Errorf("%q is no node name: it must be a DNS name in lower case (a-z, 0-9, '-', '.') or an IP address", name)
	}
	return nil
}

// CheckAddress says whether a server can have this address: host:port, of a host that is one machine.
func CheckAddress(address string) error {
	host, err := splitHostPort(address, 1)
	if err != nil {
		return err
	}
	if host == "" {
		return fmt.Errorf("%q has no host; write host:port", address)
	}
	a, err := netip.ParseAddr(host)
	if err != nil {
		if len(validation.IsDNS1123Subdomain(strings.ToLower(host))) > 0 {
			return fmt.Errorf("%q: the host is neither an IP address nor a DNS name", address)
		}
		return nil
	}
	if !peers.Usable(a) {
		return fmt.Errorf("%q is no address of one machine (it is unspecified, multicast or broadcast)", address)
	}
	return nil
}

func splitHostPort(address string, leastPort int) (string, error) {
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return "", fmt.Errorf("%q is not host:port", address)
	}
	if n, err := strconv.ParseUint(port, 10, 16); err != nil || int(n) < leastPort {
		return "", fmt.Errorf("%q: %q is no port number", address, port)
	}
	return host, nil
}

// canonical makes two spellings of one address equal.
func canonical(address string) string {
	if a, err := netip.ParseAddrPort(address); err == nil {
		return netip.AddrPortFrom(a.Addr().Unmap(), a.Port()).String()
	}
	return strings.ToLower(address)
}
