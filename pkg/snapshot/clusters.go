package snapshot

import (
	"path/filepath"
	"time"

	mutationv3 "github.com/envoyproxy/go-control-plane/envoy/config/common/mutation_rules/v3"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	aggregatev3 "github.com/envoyproxy/go-control-plane/envoy/extensions/clusters/aggregate/v3"
	headermutationv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/header_mutation/v3"
	codecv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/upstream_codec/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	upstreamhttpv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/upstreams/http/v3"
	matcherv3 "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"xds-server/pkg/routing"
)

const (
	// metadataKey holds, on an endpoint, what upstream filters write into headers of requests sent to it.
	metadataKey = "xds"
	// ProxiedHeader marks a request as proxied once already, and its answer as coming from a peer (KEP-4020's name).
	ProxiedHeader = "x-kubernetes-peer-proxied"
	// StateHeader tells a peer listener how the sender has evaluated the request's identity.
	StateHeader = "x-id-state"
	// serverName is what every apiserver's serving certificate must be valid for, as for the native peer proxy.
	serverName = "kubernetes.default.svc"

	// idleTimeout is how long a connection to a server stays that has nothing to do. Each belongs to one client's
	// connection and outlives it, so clients that come and go must not pile them up.
	idleTimeout = 10 * time.Second

	httpOptions = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions"
	// unlimited is far above what an apiserver takes: it does its own limiting, fairly.
	unlimited = 1_000_000
)

// endpoints are a set's peers with their readiness. An unready one gets no requests while another can serve.
func (b *builder) endpoints(cluster string, set routing.Set, variant string) (*endpointv3.ClusterLoadAssignment, error) {
	locality := &endpointv3.LocalityLbEndpoints{}
	for _, name := range set.Peers {
		peer := b.known[name]
		host, port, err := splitAddress(name, peer.Address)
		if err != nil {
			return nil, err
		}
		health := corev3.HealthStatus_UNHEALTHY
		if peer.Ready {
			health = corev3.HealthStatus_HEALTHY
		}
		locality.LbEndpoints = append(locality.LbEndpoints, &endpointv3.LbEndpoint{
			HealthStatus: health,
			Metadata:     endpointMetadata(peer.Direct, variant),
			HostIdentifier: &endpointv3.LbEndpoint_Endpoint{Endpoint: &endpointv3.Endpoint{
				Hostname: name,
				Address: &corev3.Address{Address: &corev3.Address_SocketAddress{SocketAddress: &corev3.SocketAddress{
					Address: host, PortSpecifier: &corev3.SocketAddress_PortValue{PortValue: port},
				}}},
			}},
		})
	}
	return &endpointv3.ClusterLoadAssignment{ClusterName: cluster, Endpoints: []*endpointv3.LocalityLbEndpoints{locality}}, nil
}

// endpointMetadata says what is sent to this endpoint beside the request: that it is proxied and, to a peer listener,
// how the identity was evaluated. A kube-apiserver's own port is reached with another TLS context.
func endpointMetadata(direct bool, variant string) *corev3.Metadata {
	fields := map[string]*structpb.Value{"peer": structpb.NewStringValue("true")}
	m := &corev3.Metadata{FilterMetadata: map[string]*structpb.Struct{metadataKey: {Fields: fields}}}
	if direct {
		m.FilterMetadata["envoy.transport_socket_match"] = directMatch()
	} else {
		fields["state"] = structpb.NewStringValue(variant)
	}
	return m
}

func directMatch() *structpb.Struct {
	return &structpb.Struct{Fields: map[string]*structpb.Value{"direct": structpb.NewStringValue("true")}}
}

// peersCluster reaches a set of peers. A peer listener is always shown the front-proxy certificate, which is the hop's
// mutual TLS; an apiserver's own port only for the fp variant.
func (b *builder) peersCluster(name, variant string, peers int) (*clusterv3.Cluster, error) {
	options, err := protocolOptions()
	if err != nil {
		return nil, err
	}
	listener, err := b.transportSocket(true)
	if err != nil {
		return nil, err
	}
	direct, err := b.transportSocket(variant == fp)
	if err != nil {
		return nil, err
	}
	return &clusterv3.Cluster{
		Name:                 name,
		ClusterDiscoveryType: &clusterv3.Cluster_Type{Type: clusterv3.Cluster_EDS},
		EdsClusterConfig: &clusterv3.Cluster_EdsClusterConfig{EdsConfig: &corev3.ConfigSource{
			ResourceApiVersion:    corev3.ApiVersion_V3,
			ConfigSourceSpecifier: &corev3.ConfigSource_Ads{Ads: &corev3.AggregatedConfigSource{}},
		}},
		ConnectTimeout:                        durationpb.New(time.Second),
		PerConnectionBufferLimitBytes:         wrapperspb.UInt32(1 << 20),
		ConnectionPoolPerDownstreamConnection: true,
		CircuitBreakers:                       circuitBreakers(),
		OutlierDetection:                      outlierDetection(peers),
		CommonLbConfig:                        &clusterv3.Cluster_CommonLbConfig{HealthyPanicThreshold: &typev3.Percent{}},
		UpstreamConnectionOptions: &clusterv3.UpstreamConnectionOptions{TcpKeepalive: &corev3.TcpKeepalive{
			KeepaliveProbes: wrapperspb.UInt32(3), KeepaliveTime: wrapperspb.UInt32(30), KeepaliveInterval: wrapperspb.UInt32(5),
		}},
		TypedExtensionProtocolOptions: options,
		TransportSocketMatches: []*clusterv3.Cluster_TransportSocketMatch{
			{Name: "apiserver", Match: directMatch(), TransportSocket: direct},
			{Name: "peer-listener", Match: &structpb.Struct{}, TransportSocket: listener},
		},
	}, nil
}

// aggregateCluster puts the local server first and the peers next. Its health check is the bootstrap's, so that a new
// set is usable at once, without waiting for one.
func aggregateCluster(name string, members ...string) (*clusterv3.Cluster, error) {
	config, err := packed(&aggregatev3.ClusterConfig{Clusters: members})
	if err != nil {
		return nil, err
	}
	options, err := protocolOptions()
	if err != nil {
		return nil, err
	}
	return &clusterv3.Cluster{
		Name:                                  name,
		ClusterDiscoveryType:                  &clusterv3.Cluster_ClusterType{ClusterType: &clusterv3.Cluster_CustomClusterType{Name: "envoy.clusters.aggregate", TypedConfig: config}},
		LbPolicy:                              clusterv3.Cluster_CLUSTER_PROVIDED,
		ConnectTimeout:                        durationpb.New(time.Second),
		PerConnectionBufferLimitBytes:         wrapperspb.UInt32(1 << 20),
		ConnectionPoolPerDownstreamConnection: true,
		CircuitBreakers:                       circuitBreakers(),
		CommonLbConfig:                        &clusterv3.Cluster_CommonLbConfig{HealthyPanicThreshold: &typev3.Percent{}},
		TypedExtensionProtocolOptions:         options,
	}, nil
}

// protocolOptions speak upstream what the client speaks (upgrades need HTTP/1.1), and mark a request that leaves for a
// peer: the filter runs when the host is known, which in an aggregate may be the local server or a peer.
func protocolOptions() (map[string]*anypb.Any, error) {
	mutations := &headermutationv3.Mutations{}
	for _, h := range []struct{ header, value string }{
		{ProxiedHeader, "%UPSTREAM_METADATA(" + metadataKey + ":peer)%"},
		{StateHeader, "%UPSTREAM_METADATA(" + metadataKey + ":state)%"},
	} {
		mutations.RequestMutations = append(mutations.RequestMutations, &mutationv3.HeaderMutation{
			Action: &mutationv3.HeaderMutation_Append{Append: &corev3.HeaderValueOption{
				Header:       &corev3.HeaderValue{Key: h.header, Value: h.value},
				AppendAction: corev3.HeaderValueOption_OVERWRITE_IF_EXISTS_OR_ADD,
			}},
		})
	}
	mark, err := packed(&headermutationv3.HeaderMutation{Mutations: mutations})
	if err != nil {
		return nil, err
	}
	codec, err := packed(&codecv3.UpstreamCodec{})
	if err != nil {
		return nil, err
	}
	options, err := packed(&upstreamhttpv3.HttpProtocolOptions{
		CommonHttpProtocolOptions: &corev3.HttpProtocolOptions{
			IdleTimeout: durationpb.New(idleTimeout),
			// An apiserver writes a Warning header for every unknown field of an object.
			MaxHeadersCount: wrapperspb.UInt32(1000), MaxResponseHeadersKb: wrapperspb.UInt32(1024),
		},
		UpstreamProtocolOptions: &upstreamhttpv3.HttpProtocolOptions_UseDownstreamProtocolConfig{
			UseDownstreamProtocolConfig: &upstreamhttpv3.HttpProtocolOptions_UseDownstreamHttpConfig{
				HttpProtocolOptions: &corev3.Http1ProtocolOptions{},
				Http2ProtocolOptions: &corev3.Http2ProtocolOptions{
					// An apiserver allows 100 streams; Envoy would overrun that before it hears of it.
					MaxConcurrentStreams:        wrapperspb.UInt32(100),
					InitialStreamWindowSize:     wrapperspb.UInt32(1 << 20),
					InitialConnectionWindowSize: wrapperspb.UInt32(4 << 20),
					ConnectionKeepalive: &corev3.KeepaliveSettings{
						Interval: durationpb.New(30 * time.Second), Timeout: durationpb.New(10 * time.Second),
					},
				},
			},
		},
		HttpFilters: []*hcmv3.HttpFilter{
			{Name: "mark-proxied", ConfigType: &hcmv3.HttpFilter_TypedConfig{TypedConfig: mark}},
			{Name: "envoy.filters.http.upstream_codec", ConfigType: &hcmv3.HttpFilter_TypedConfig{TypedConfig: codec}},
		},
	})
	if err != nil {
		return nil, err
	}
	return map[string]*anypb.Any{httpOptions: options}, nil
}

// transportSocket is TLS to a server whose certificate is valid for serverName, with the node's front-proxy
// certificate if so told. Certificates are named by the SDS files of the bootstrap, so rotation is Envoy's.
func (b *builder) transportSocket(clientCertificate bool) (*corev3.TransportSocket, error) {
	common := &tlsv3.CommonTlsContext{
		ValidationContextType: &tlsv3.CommonTlsContext_CombinedValidationContext{
			CombinedValidationContext: &tlsv3.CommonTlsContext_CombinedCertificateValidationContext{
				DefaultValidationContext: &tlsv3.CertificateValidationContext{
					MatchTypedSubjectAltNames: []*tlsv3.SubjectAltNameMatcher{{
						SanType: tlsv3.SubjectAltNameMatcher_DNS,
						Matcher: &matcherv3.StringMatcher{MatchPattern: &matcherv3.StringMatcher_Exact{Exact: serverName}},
					}},
				},
				ValidationContextSdsSecretConfig: b.secret("server-ca"),
			},
		},
	}
	if clientCertificate {
		common.TlsCertificateSdsSecretConfigs = []*tlsv3.SdsSecretConfig{b.secret("front-proxy")}
	}
	config, err := packed(&tlsv3.UpstreamTlsContext{Sni: serverName, CommonTlsContext: common})
	if err != nil {
		return nil, err
	}
	return &corev3.TransportSocket{
		Name: "envoy.transport_sockets.tls", ConfigType: &corev3.TransportSocket_TypedConfig{TypedConfig: config},
	}, nil
}

// secret refers to one of the bootstrap's SDS files, with the same polling as there.
func (b *builder) secret(name string) *tlsv3.SdsSecretConfig {
	return &tlsv3.SdsSecretConfig{Name: name, SdsConfig: &corev3.ConfigSource{
		ResourceApiVersion: corev3.ApiVersion_V3,
		ConfigSourceSpecifier: &corev3.ConfigSource_PathConfigSource{PathConfigSource: &corev3.PathConfigSource{
			Path: filepath.Join(b.secretsDir, name+".yaml"), PollInterval: durationpb.New(2 * time.Second),
		}},
	}}
}

func circuitBreakers() *clusterv3.CircuitBreakers {
	return &clusterv3.CircuitBreakers{Thresholds: []*clusterv3.CircuitBreakers_Thresholds{{
		MaxConnections: wrapperspb.UInt32(unlimited), MaxPendingRequests: wrapperspb.UInt32(unlimited), MaxRequests: wrapperspb.UInt32(unlimited),
		RetryBudget: &clusterv3.CircuitBreakers_Thresholds_RetryBudget{
			BudgetPercent: &typev3.Percent{Value: 100}, MinRetryConcurrency: wrapperspb.UInt32(1000),
		},
	}}}
}

// outlierDetection ejects one of several peers that can't be reached; what a peer answers is never a reason, since webhooks and
// aggregated APIs behind it fail for reasons of their own.
func outlierDetection(peers int) *clusterv3.OutlierDetection {
	if peers == 1 {
		return nil // without it there would be nothing left to try
	}
	return &clusterv3.OutlierDetection{
		SplitExternalLocalOriginErrors:         true,
		ConsecutiveLocalOriginFailure:          wrapperspb.UInt32(3),
		EnforcingConsecutiveLocalOriginFailure: wrapperspb.UInt32(100),
		EnforcingConsecutive_5Xx:               wrapperspb.UInt32(0),
		EnforcingConsecutiveGatewayFailure:     wrapperspb.UInt32(0),
		EnforcingSuccessRate:                   wrapperspb.UInt32(0),
		EnforcingLocalOriginSuccessRate:        wrapperspb.UInt32(0),
		MaxEjectionPercent:                     wrapperspb.UInt32(100),
		Interval:                               durationpb.New(time.Second),
		BaseEjectionTime:                       durationpb.New(time.Second),
		MaxEjectionTime:                        durationpb.New(5 * time.Second),
	}
}
