package main

import (
	"time"

	"github.com/spf13/cobra"

	"xds-server/envoy"
)

func bootstrapCommand() *cobra.Command {
	o := envoy.Defaults()
	cmd := &cobra.Command{
		Use:   "bootstrap --node-name NAME --address IP",
		Short: "Print a node's complete static Envoy configuration",
		Long: `Print a node's complete static Envoy configuration, and write the SDS files that it refers to into --secrets-dir.

The defaults are kubeadm's paths, so that a node's name and address are enough. The SDS files hold the paths of
certificates and keys, not their content; Envoy follows changes of those files by itself. Run it on the node, with the
rights to read the files that it checks.`,
		Example: "  xds-server bootstrap --node-name cp-1 --address 10.0.0.11 > /etc/xds-server/envoy/envoy.yaml",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			o := o.Complete()
			out, err := envoy.Bootstrap(o)
			if err != nil {
				return err
			}
			if err := o.CheckFiles(time.Now()); err != nil {
				return err
			}
			if err := envoy.WriteSecrets(o); err != nil {
				return err
			}
			_, err = cmd.OutOrStdout().Write(out)
			return err
		},
	}
	f := cmd.Flags()
	f.StringVar(&o.NodeName, "node-name", o.NodeName, "the node's name, as xds-server's configuration has it (required)")
	f.StringVar(&o.FrontAddress, "address", o.FrontAddress, "address of the front, IP or IP:port; clients connect here (required; port "+envoy.FrontPort+")")
	f.StringSliceVar(&o.ExtraAddresses, "extra-address", nil, "further address of the front, such as a virtual IP, IP or IP:port (repeatable)")
	f.BoolVar(&o.ProxyProtocol, "proxy-protocol", false, "expect a PROXY protocol header on every connection to the front")
	f.StringVar(&o.PeerAddress, "peer-address", o.PeerAddress, "address of the peer listener, IP or IP:port (default: the front's IP, port "+envoy.PeerPort+")")
	f.StringVar(&o.LocalAddress, "local-address", o.LocalAddress, "IP:port of the node's kube-apiserver")
	f.StringVar(&o.AdminAddress, "admin-address", o.AdminAddress, "Envoy's admin endpoint: unix:PATH or a loopback IP:port")
	f.StringVar(&o.Socket, "socket", o.Socket, "unix socket of the node's xds-server")
	f.StringSliceVar(&o.XDSPeers, "xds-peer", nil, "IP:port of another node's xds-server, used when this node's can't be reached (repeatable)")
	f.StringVar(&o.SecretsDir, "secrets-dir", o.SecretsDir, "directory for Envoy's SDS files")
	f.StringVar(&o.ServingCertFile, "serving-cert-file", o.ServingCertFile, "certificate that the front and the peer listener present (kube-apiserver's own)")
	f.StringVar(&o.ServingKeyFile, "serving-key-file", o.ServingKeyFile, "key of --serving-cert-file")
	f.StringVar(&o.ClientCAFile, "client-ca-file", o.ClientCAFile, "CA of client certificates, as kube-apiserver's flag")
	f.StringVar(&o.ServerCAFile, "server-ca-file", o.ServerCAFile, "CA of the serving certificates of apiservers, peer listeners and xds-servers")
	f.StringVar(&o.FrontProxyCertFile, "proxy-client-cert-file", o.FrontProxyCertFile, "front-proxy certificate, as kube-apiserver's flag")
	f.StringVar(&o.FrontProxyKeyFile, "proxy-client-key-file", o.FrontProxyKeyFile, "key of --proxy-client-cert-file")
	f.StringVar(&o.FrontProxyCAFile, "requestheader-client-ca-file", o.FrontProxyCAFile, "CA of front-proxy certificates, as kube-apiserver's flag")
	f.StringSliceVar(&o.UsernameHeaders, "requestheader-username-headers", o.UsernameHeaders, "headers that the apiserver takes a user's name from, as its flag; a client's own are removed")
	f.StringSliceVar(&o.GroupHeaders, "requestheader-group-headers", o.GroupHeaders, "the same for groups")
	f.StringSliceVar(&o.UIDHeaders, "requestheader-uid-headers", o.UIDHeaders, "the same for UIDs")
	f.StringSliceVar(&o.ExtraHeadersPrefixes, "requestheader-extra-headers-prefix", o.ExtraHeadersPrefixes, "the same for extras, by prefix")
	f.StringSliceVar(&o.AllowedNames, "requestheader-allowed-names", o.AllowedNames, "names that a peer's front-proxy certificate may have, as kube-apiserver's flag")
	f.StringSliceVar(&o.XDSServerNames, "xds-server-names", o.XDSServerNames, "names that an xds-server's own client certificate may have")
	return cmd
}
