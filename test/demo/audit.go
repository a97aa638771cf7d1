package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	auditv1 "k8s.io/apiserver/pkg/apis/audit/v1"

	"xds-server/test/lab"
	"xds-server/test/plane"
)

// showAudit shows who the new server thinks has asked: the certificate's user, in whose name its peer's Envoy spoke.
func showAudit(ctx context.Context, l *lab.Lab, p *plane.Plane) (wrong int) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	event, err := p.Nodes[newNode].WaitAudit(ctx, func(e *auditv1.Event) bool {
		return e.User.Username == "carol" && strings.HasPrefix(e.RequestURI, migrations)
	})
	if err != nil {
		fmt.Println("✗ the new server's audit log:", err)
		return 1
	}
	fmt.Printf("✓ the new server's audit log has the caller as he is\n    user %q, groups %q, from %v\n\n",
		event.User.Username, event.User.Groups, event.SourceIPs)
	if !slices.Contains(event.User.Groups, "team a, O=system:masters") || slices.Contains(event.User.Groups, "system:masters") {
		fmt.Println("✗ those are not the certificate's groups")
		return 1
	}
	return 0
}

// explain tells how to look around while the demo runs.
func explain(l *lab.Lab, p *plane.Plane) error {
	old := p.Nodes[oldNode]
	front, err := l.Kubeconfig(old.FrontURL(), l.Token("alice"))
	if err != nil {
		return err
	}
	direct, err := l.Kubeconfig(old.DirectURL(), l.Token("alice"))
	if err != nil {
		return err
	}
	enter, kubectl := lab.Enter(), lab.Kubectl(lab.Kube137).Path()
	fmt.Printf(`The control plane stays up until Ctrl-C. It lives in a network of its own; from another terminal:

  # through the old server's front, and the old server itself
  %[1]s %[2]s --kubeconfig %[3]s get --raw %[4]s
  %[1]s %[2]s --kubeconfig %[5]s get --raw %[4]s

  # what xds-server gives the old server's Envoy
  %[6]s -plaintext -unix %[7]s list
  %[6]s -plaintext -unix -d '{"node":{"id":"%[8]s"}}' %[7]s envoy.service.route.v3.RouteDiscoveryService/FetchRoutes
  %[6]s -plaintext -unix -d '{"node":{"id":"%[8]s"}}' %[7]s envoy.service.cluster.v3.ClusterDiscoveryService/FetchClusters

`, enter, kubectl, front, migrations, direct, lab.GRPCurl.Path(), old.XDSSocket, oldNode)
	return nil
}
