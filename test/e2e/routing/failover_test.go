package routing

import (
	"context"
	"fmt"
	"net/http"
	"testing"
	"time"

	"xds-server/test/e2e/suite"
	"xds-server/test/lab"
	"xds-server/test/plane"
)

// The table's sets have the local server first and the peers next: what both serve is served on while one is away.
func TestAFrontWhoseServerIsAwayAnswersThroughPeers(t *testing.T) {
	suite.Scenario(t, "B4-away", "while the local server is down its front answers through a peer what both serve, as the same user, and by itself again afterwards", func(s *suite.S) {
		w := alone(s, lab.Config{Nodes: []lab.NodeConfig{
			{Name: "old", Version: lab.Kube136}, {Name: "new", Version: lab.Kube137},
		}}, plane.Options{})
		carol, err := w.NewClientCertificate("carol", "lab:admins")
		if err != nil {
			s.Fatal(err)
		}
		url := w.old.FrontURL() + "/apis/authentication.k8s.io/v1/selfsubjectreviews"
		ask := func(c lab.Credential, p lab.Protocol, proxied string) error {
			a, err := lab.Call(s.Ctx, s.Client(w.Lab, c, p), http.MethodPost, url, `{"apiVersion":"authentication.k8s.io/v1","kind":"SelfSubjectReview"}`, nil)
			if err != nil {
				return err
			}
			if a.Status != http.StatusCreated || a.Header.Get("X-Kubernetes-Peer-Proxied") != proxied {
				return fmt.Errorf("answered %d, proxied %q: %.300s", a.Status, a.Header.Get("X-Kubernetes-Peer-Proxied"), a.Body)
			}
			return nil
		}
		all := func(proxied string) error {
			for _, c := range []lab.Credential{carol, w.Token("alice")} {
				for _, p := range []lab.Protocol{lab.HTTP1, lab.HTTP2} {
					if err := ask(c, p, proxied); err != nil {
						return err
					}
				}
			}
			return nil
		}
		if err := all(""); err != nil {
			s.Fatalf("before: %v", err)
		}
		w.old.Server.Kill()
		// Nothing was delivered to a server that is not there, so not even the first request fails.
		for range 10 {
			if err := all("true"); err != nil {
				s.Fatalf("while the local server is down: %v", err)
			}
		}
		if err := w.old.Server.Start(); err != nil {
			s.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(s.Ctx, time.Minute)
		defer cancel()
		if err := plane.Eventually(ctx, "the front's own server answers again", func() error { return all("") }); err != nil {
			s.Fatal(err)
		}
	})
}
