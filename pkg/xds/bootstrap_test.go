package xds

// bootstrap is the least that an Envoy needs to take its clusters, its routes and its runtime from here: %[1]s is the
// node, %[2]s the server's address, %[3]s the rest of its cluster.
const bootstrap = `
node: {id: %[1]s, cluster: test}
admin: {address: {socket_address: {address: 127.0.0.1, port_value: 0}}}
dynamic_resources:
  ads_config:
    api_type: DELTA_GRPC
    transport_api_version: V3
    set_node_on_first_message_only: true
    grpc_services:
    - envoy_grpc: {cluster_name: xds-server, retry_policy: {retry_back_off: {base_interval: 0.05s, max_interval: 0.2s}}}
  cds_config: {ads: {}, resource_api_version: V3, initial_fetch_timeout: 5s}
layered_runtime:
  layers:
  - name: peer_routing
    rtds_layer: {name: peer_routing, rtds_config: {ads: {}, resource_api_version: V3, initial_fetch_timeout: 5s}}
static_resources:
  clusters:
  - name: xds-server
    type: STATIC
    typed_extension_protocol_options:
      envoy.extensions.upstreams.http.v3.HttpProtocolOptions:
        "@type": type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions
        explicit_http_config: {http2_protocol_options: {connection_keepalive: {interval: 5s, timeout: 3s}}}
    load_assignment:
      cluster_name: xds-server
      endpoints: [{lb_endpoints: [{endpoint: {address: %[2]s}}]}]
%[3]s
  listeners:
  - name: front
    address: {socket_address: {address: 127.0.0.1, port_value: 0}}
    filter_chains:
    - filters:
      - name: hcm
        typed_config:
          "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
          stat_prefix: front
          http_filters:
          - name: router
            typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router}
          rds: {route_config_name: front, config_source: {ads: {}, resource_api_version: V3, initial_fetch_timeout: 5s}}
`

// clientTLS is the cluster's transport socket: %[1]s is the directory of the files.
const clientTLS = `
    transport_socket:
      name: tls
      typed_config:
        "@type": type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.UpstreamTlsContext
        sni: xds-server
        common_tls_context:
          tls_certificates: [{certificate_chain: {filename: %[1]s/client.crt}, private_key: {filename: %[1]s/client.key}}]
          validation_context:
            trusted_ca: {filename: %[1]s/ca.crt}
            match_typed_subject_alt_names: [{san_type: DNS, matcher: {exact: xds-server}}]
`
