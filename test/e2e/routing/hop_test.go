package routing

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	auditv1 "k8s.io/apiserver/pkg/apis/audit/v1"

	"xds-server/test/e2e/suite"
	"xds-server/test/lab"
	"xds-server/test/plane"
)

// What each server is believed to serve by the other's xds-server, and neither does: a group of its own, and a resource
// of a version that both have. An apiserver says 404 to them in two ways.
const (
	widgets     = "/apis/" + claimedGroup + "/v1/namespaces/default/widgets"
	appsWidgets = "/apis/apps/v1/namespaces/default/widgets"
)

func TestTwoServersThatBelieveInEachOtherMakeOneHop(t *testing.T) {
	suite.Scenario(t, "12", "two servers each believe that the other serves X: one hop, then a 503 Status; without the guard it is a 404", func(s *suite.S) {
		w := upgrade(s)
		believeInEachOther(s, w)
		certificate, err := w.NewClientCertificate("henry", "lab:admins")
		if err != nil {
			s.Fatal(err)
		}
		sent := 0
		for _, n := range []*plane.Node{w.old, w.updated} {
			for _, protocol := range []lab.Protocol{lab.HTTP1, lab.HTTP2} {
				for _, credential := range []lab.Credential{w.Token("alice"), certificate} {
					client := s.Client(w.Lab, credential, protocol)
					for _, r := range hopRequests() {
						sent++
						r.header.Set("User-Agent", fmt.Sprintf("hop %d at %s", sent, n.Name))
						isOneHop(s, client, n, r)
					}
				}
			}
		}
		hopsAreOne(s, w, sent)

		withBootstrap(s, w.old, `== "404" and headers:get("x-kubernetes-peer-proxied")`, `== "000" and headers:get("x-kubernetes-peer-proxied")`, func() {
			if err := w.old.WaitRouted(s.Ctx); err != nil {
				s.Fatal(err)
			}
			client := s.Client(w.Lab, w.Token("alice"), lab.HTTP2)
			for _, path := range []string{widgets, appsWidgets} {
				if a := s.Call(client, "GET", w.old.FrontURL()+path, "", nil); a.Status != 404 {
					s.Errorf("without the guard %s is %d and not 404: this test would not notice that it is missing", path, a.Status)
				}
			}
		})
	})
}

// believeInEachOther restarts the xds-servers with the other node's server replaced by its twin, which claims widgets.
func believeInEachOther(s *suite.S, w world) {
	s.Helper()
	nodes := []*plane.Node{w.old, w.updated}
	s.Cleanup(func() { // with the files as they were
		ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
		defer cancel()
		for _, n := range nodes {
			if err := restart(ctx, n.XDSServer); err != nil {
				s.Error(err)
			}
		}
		for _, n := range nodes {
			if err := plane.Eventually(ctx, n.Name+" has its own routes again", func() error { return believes(ctx, n, false) }); err != nil {
				s.Error(err)
			}
		}
	})
	for _, n := range nodes {
		for _, other := range nodes {
			if other == n {
				continue
			}
			t := newTwin(s, w, other)
			t.claim(func(c *claims) {
				c.add(claimedGroup, "v1", "widgets")
				c.extend("apps", "v1", "widgets")
			})
			rewriteConfig(s, n, func(config map[string]any) {
				for _, server := range config["servers"].([]any) {
					if server := server.(map[string]any); server["name"] == other.Name {
						server["address"] = t.Address
					}
				}
			})
		}
		if err := restart(s.Ctx, n.XDSServer); err != nil {
			s.Fatal(err)
		}
	}
	for _, n := range nodes {
		if err := plane.Eventually(s.Ctx, n.Name+" believes in its peer", func() error { return believes(s.Ctx, n, true) }); err != nil {
			s.Fatal(err)
		}
	}
}

func restart(ctx context.Context, p *lab.Process) error {
	if err := p.Stop(ctx); err != nil {
		return err
	}
	if err := p.Start(); err != nil {
		return err
	}
	return p.WaitReady(ctx)
}

func believes(ctx context.Context, n *plane.Node, want bool) error {
	_, routes, err := routesOf(ctx, n)
	if err == nil && strings.Contains(routes, claimedGroup+"/v1/widgets") != want {
		err = fmt.Errorf("its routes have widgets: %v", !want)
	}
	return err
}

type hopRequest struct {
	method, path, body string
	header             http.Header
}

func hopRequests() []hopRequest {
	var out []hopRequest
	add := func(method, path, body string, header ...string) {
		h := http.Header{}
		for i := 0; i < len(header); i += 2 {
			h.Set(header[i], header[i+1])
		}
		out = append(out, hopRequest{method, path, body, h})
	}
	for _, path := range []string{widgets, appsWidgets} {
		for _, accept := range []string{"application/json", "application/yaml", "application/vnd.kubernetes.protobuf",
			"application/json;as=Table;g=meta.k8s.io;v=v1"} {
			add("GET", path, "", "Accept", accept)
		}
		add("GET", path+"?watch=1", "")
		add("GET", path+"/x", "")
		add("GET", path+"/x/status", "")
		add("POST", path, `{"metadata":{"name":"x"}}`)
		add("PUT", path+"/x", `{"metadata":{"name":"x"}}`)
		add("PATCH", path+"/x", `{}`, "Content-Type", "application/merge-patch+json")
		add("DELETE", path+"/x", "")
		add("DELETE", path, "")
	}
	// Its documents make no hop: they are merged from what is believed.
	return out
}

func isOneHop(s *suite.S, client *http.Client, n *plane.Node, r hopRequest) {
	s.Helper()
	a := s.Call(client, r.method, n.FrontURL()+r.path, r.body, r.header)
	var status struct {
		Kind, Status, Reason string
		Code                 int
	}
	err := json.Unmarshal(a.Body, &status)
	if err != nil || a.Status != 503 || status.Kind != "Status" || status.Code != 503 || status.Reason != "ServiceUnavailable" ||
		a.Header.Get("Content-Type") != "application/json" || a.Header.Get("X-Kubernetes-Peer-Proxied") != "true" {
		s.Errorf("%s %s at %s (%s) answered %d, want a 503 Status from a peer: %v %v\n%.300s", r.method, r.path, n.Name, r.header, a.Status, err, a.Header, a.Body)
	}
}

// hopsAreOne checks that each request came to the other server, once, and never to the one at whose front it was made.
func hopsAreOne(s *suite.S, w world, sent int) {
	s.Helper()
	ctx, cancel := context.WithTimeout(s.Ctx, 20*time.Second)
	defer cancel()
	last := fmt.Sprintf("hop %d at %s", sent, w.updated.Name)
	if _, err := w.old.WaitAudit(ctx, func(e *auditv1.Event) bool { return e.UserAgent == last }); err != nil {
		s.Fatal(err)
	}
	came := map[string]int{}
	for _, n := range []*plane.Node{w.old, w.updated} {
		events, err := n.Audit()
		if err != nil {
			s.Fatal(err)
		}
		for _, e := range events {
			if strings.HasPrefix(e.UserAgent, "hop ") && e.Stage == auditv1.StageResponseComplete {
				came[e.UserAgent]++
				if strings.HasSuffix(e.UserAgent, " at "+n.Name) {
					s.Errorf("%q came to %s itself", e.UserAgent, n.Name)
				}
			}
		}
	}
	for agent, times := range came {
		if times != 1 {
			s.Errorf("%q came to servers %d times", agent, times)
		}
	}
	if len(came) != sent {
		s.Errorf("%d of %d requests came to a server", len(came), sent)
	}
}
