package main

import (
	"context"
	"fmt"
	"strings"

	"xds-server/test/lab"
	"xds-server/test/plane"
)

const migrations = "/apis/storagemigration.k8s.io/v1/storageversionmigrations"

const migration = `{"apiVersion":"storagemigration.k8s.io/v1","kind":"StorageVersionMigration","metadata":{"name":"demo"},
"spec":{"resource":{"group":"","resource":"secrets"}}}`

// step is one request and what its answer has to be.
type step struct {
	what      string
	client    lab.Credential
	url       string
	method    string
	body      string
	status    int
	proxied   bool
	contained string
}

// show makes every request of the story and says how many answers were wrong.
func show(ctx context.Context, l *lab.Lab, p *plane.Plane) (wrong int) {
	alice, old, updated := l.Token("alice"), p.Nodes[oldNode], p.Nodes[newNode]
	carol, err := l.NewClientCertificate("carol", "lab:admins", "team a, O=system:masters")
	if err != nil {
		fmt.Println(err)
		return 1
	}
	steps := []step{
		{"the old server itself does not know the API", alice, old.DirectURL() + migrations, "GET", "", 404, false, "404 page not found"},
		{"its front has the new server answer", alice, old.FrontURL() + migrations, "GET", "", 200, true, "StorageVersionMigrationList"},
		{"creating one through the old server's front", alice, old.FrontURL() + migrations, "POST", migration, 201, true, `"name":"demo"`},
		{"reading it through the new server's front, which needs no peer", alice, updated.FrontURL() + migrations + "/demo", "GET", "", 200, false, `"name":"demo"`},
		{"a client certificate works the same", carol, old.FrontURL() + migrations + "/demo", "GET", "", 200, true, `"name":"demo"`},
		{"a missing object is the new server's own 404", alice, old.FrontURL() + migrations + "/missing", "GET", "", 404, true, `"name":"missing"`},
		{"who may not, may not there either", l.Token("nobody"), old.FrontURL() + migrations, "GET", "", 403, true, `User \"nobody\" cannot list`},
		{"what the old server knows, it answers itself", alice, old.FrontURL() + "/api/v1/namespaces/default", "GET", "", 200, false, `"name":"default"`},
		{"deleting it through the old server's front", alice, old.FrontURL() + migrations + "/demo", "DELETE", "", 200, true, "demo"},
	}
	for _, s := range steps {
		answer, err := lab.Call(ctx, l.Client(s.client, lab.HTTP2), s.method, s.url, s.body, nil)
		if err != nil {
			fmt.Printf("✗ %s: %s %s: %v\n", s.what, s.method, s.url, err)
			wrong++
			continue
		}
		proxied := answer.Header.Get("X-Kubernetes-Peer-Proxied")
		ok := answer.Status == s.status && (proxied == "true") == s.proxied && strings.Contains(string(answer.Body), s.contained)
		mark := "✓"
		if !ok {
			mark = "✗"
			wrong++
		}
		by := "answered by the server itself"
		if proxied != "" {
			by = "x-kubernetes-peer-proxied: " + proxied
		}
		fmt.Printf("%s %s\n    %s %s → %d, %s\n", mark, s.what, s.method, s.url, answer.Status, by)
		if !ok {
			fmt.Printf("    expected %d, proxied %v, %q in: %.300s\n", s.status, s.proxied, s.contained, answer.Body)
		}
	}
	return wrong + showDiscovery(ctx, l, p) + showAudit(ctx, l, p)
}
