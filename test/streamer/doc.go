// Package streamer is a streaming server that stands in for a kubelet: a kube-apiserver sends it logs, exec, attach
// and port-forward, and it answers with what a kubelet is made of, k8s.io/cri-streaming and the apiserver library's
// websocket translators. Only the container is made up: its few commands run in this process (see container.go).
//
// As in a kubelet with containerd, each request first meets an outer handler with the kubelet's paths over TLS, which
// proxies the upgrade to an inner CRI streaming server on another loopback port.
package streamer
