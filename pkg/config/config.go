// Package config is xds-server's configuration: flags over environment over file over defaults, validated once when it
// is loaded. Every error names the key and the way out, in one line.
package config

import (
	"cmp"
	"net/netip"
	"slices"
	"time"

	"xds-server/pkg/peers"
)

// Config is the whole configuration. The mapstructure names are the keys of the file; settings.go has each key's flag,
// default and meaning.
type Config struct {
	NodeName     string `mapstructure:"nodeName"`
	LocalAddress string `mapstructure:"localAddress"`

	Servers       []Server      `mapstructure:"servers"`
	EndpointSlice EndpointSlice `mapstructure:"endpointSlice"`

	PeerCAFile        string `mapstructure:"peerCAFile"`
	TLSCertFile       string `mapstructure:"tlsCertFile"`
	TLSPrivateKeyFile string `mapstructure:"tlsPrivateKeyFile"`

	Socket             string   `mapstructure:"socket"`
	Listen             string   `mapstructure:"listen"`
	ListenClientCAFile string   `mapstructure:"listenClientCAFile"`
	ListenAllowedNames []string `mapstructure:"listenAllowedNames"`
	AdminAddress       string   `mapstructure:"adminAddress"`

	PollInterval time.Duration `mapstructure:"pollInterval"`
	PollTimeout  time.Duration `mapstructure:"pollTimeout"`
	Hold         time.Duration `mapstructure:"hold"`

	LogLevel  string `mapstructure:"logLevel"`
	LogFormat string `mapstructure:"logFormat"`
}

// Server is one kube-apiserver of a static list.
type Server struct {
	Name    string `mapstructure:"name"`
	Address string `mapstructure:"address"`
	Direct  bool   `mapstructure:"direct"`
}

// EndpointSlice says how the servers are found in the cluster itself.
type EndpointSlice struct {
	Enabled    bool   `mapstructure:"enabled"`
	Kubeconfig string `mapstructure:"kubeconfig"`
	PeerPort   int    `mapstructure:"peerPort"`
	Direct     bool   `mapstructure:"direct"`
	// Names gives a server's node name by its address; a server that is not in it is named by its address.
	Names map[string]string `mapstructure:"names"`
}

// StaticServers is the static list as the other packages know it, sorted by name.
func (c Config) StaticServers() []peers.Server {
	out := make([]peers.Server, 0, len(c.Servers))
	for _, s := range c.Servers {
		out = append(out, peers.Server(s))
	}
	slices.SortFunc(out, func(a, b peers.Server) int { return cmp.Compare(a.Name, b.Name) })
	return out
}

// AddressNames is Names by parsed address. It is complete once Load has accepted the configuration.
func (e EndpointSlice) AddressNames() map[netip.Addr]string {
	out := make(map[netip.Addr]string, len(e.Names))
	for address, name := range e.Names {
		if a, err := netip.ParseAddr(address); err == nil {
			out[a.Unmap()] = name
		}
	}
	return out
}
