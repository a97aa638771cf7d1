package main

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"strings"

	"xds-server/test/lab"
	"xds-server/test/plane"
)

// showDiscovery asks both fronts, and the old server itself, what there is.
func showDiscovery(ctx context.Context, l *lab.Lab, p *plane.Plane) (wrong int) {
	accept := http.Header{"Accept": {"application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"}}
	client := l.Client(l.Token("alice"), lab.HTTP2)
	var answers []*lab.Answer
	for _, url := range []string{p.Nodes[oldNode].FrontURL(), p.Nodes[newNode].FrontURL(), p.Nodes[oldNode].DirectURL()} {
		a, err := lab.Call(ctx, client, "GET", url+"/apis", "", accept)
		if err != nil {
			fmt.Printf("✗ GET %s/apis: %v\n", url, err)
			return 1
		}
		answers = append(answers, a)
	}
	old, updated, direct := answers[0], answers[1], answers[2]
	has := func(a *lab.Answer) bool { return strings.Contains(string(a.Body), `"storageversionmigrations"`) }
	mark := "✓"
	if !bytes.Equal(old.Body, updated.Body) || old.Header.Get("Etag") != updated.Header.Get("Etag") || !has(old) || has(direct) {
		mark, wrong = "✗", 1
	}
	fmt.Printf("%s both fronts show one discovery document; the old server alone lacks the API\n", mark)
	for i, of := range []string{"the old server's front", "the new server's front", "the old server itself"} {
		a := answers[i]
		fmt.Printf("    GET /apis at %s → %d, %d bytes, with the API: %v, x-kubernetes-discovery: %s\n",
			of, a.Status, len(a.Body), has(a), a.Header.Get("X-Kubernetes-Discovery"))
	}
	return wrong
}
