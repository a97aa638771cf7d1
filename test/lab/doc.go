// Package lab runs a real control plane for the demo, the end-to-end tests and
// the benchmarks: etcd, kube-apiservers of any listed version, Envoy and
// xds-server, each a process of its own.
//
// A program enters the lab through Main (tests) or Run (everything else). They
// first get the parts that are needed, with the network that the machine has,
// and then run the program again inside a network namespace of its own, in
// which only the loopback interface exists. The reason is the object at the
// heart of peer discovery: the API refuses loopback addresses in the
// `kubernetes` EndpointSlice, so nodes need addresses that look routable, and
// only in a namespace can they be had without opening a port to anybody else.
//
// In the lab, node i of lab n has the address 10.0.n.(10+i); its Envoy listens
// there, and its kube-apiserver, as we recommend, on a loopback address with
// the same port: 127.0.n.(10+i):6443.
package lab
