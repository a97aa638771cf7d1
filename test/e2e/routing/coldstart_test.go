package routing

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	apidiscoveryv2 "k8s.io/api/apidiscovery/v2"

	"xds-server/test/e2e/suite"
	"xds-server/test/lab"
	"xds-server/test/plane"
)

const selfReviews = "/apis/authentication.k8s.io/v1/selfsubjectreviews"

// coldStartLimit is how long after Envoy's start everything has to work.
const coldStartLimit = 2 * time.Second

// withoutXDSServers is a control plane whose Envoys and xds-servers do not run yet, and whose fallback chain lets
// clients go after a second instead of a minute, so that a test can see where they go.
func withoutXDSServers(t testing.TB) world {
	t.Helper()
	w := alone(t, lab.Config{Nodes: []lab.NodeConfig{
		{Name: "old", Version: lab.Kube136},
		{Name: "new", Version: lab.Kube137, RuntimeConfig: []string{"policy/v1=false"}},
	}}, plane.Options{NoXDSServer: true, Failover: true, Edit: func(bootstrap string) string {
		return strings.ReplaceAll(bootstrap, "max_connection_duration: 60s", "max_connection_duration: 1s")
	}})
	return w
}

func testColdStart(t *testing.T, w world) {
	suite.Scenario(t, "A6-cold", "with no xds-server, every kind of credential works within 2 s of Envoy's start, all that the server serves, and unknown APIs are 503", func(s *suite.S) {
		credentials := everyCredential(s, w)
		if err := w.old.Envoy.WaitReady(s.Ctx); err != nil {
			s.Fatal(err)
		}
		testColdStartWithoutSafeguards(s, w)
		for _, n := range []*plane.Node{w.old, w.updated} {
			direct := map[string]review{}
			for name, c := range credentials {
				direct[name] = reviewAt(s, w, c, n.DirectURL())
			}
			var starts []time.Duration
			for range 3 {
				n.Envoy.Kill()
				begin := time.Now()
				if err := n.Envoy.Start(); err != nil {
					s.Fatal(err)
				}
				slowest := worksFrom(s, w, n, credentials, direct, begin)
				fmt.Printf("       cold start of %s without xds-server: all %d credentials work after %d ms\n", n.Name, len(credentials), slowest.Milliseconds())
				starts = append(starts, slowest)
			}
			// One start may be hindered by whatever else this machine does.
			if slices.Sort(starts); starts[1] > coldStartLimit {
				s.Errorf("cold starts of %s took %v", n.Name, starts)
			}
			if ready, err := n.Routed(s.Ctx); err != nil || ready {
				s.Errorf("%s routes without an xds-server: %v", n.Name, err)
			}
			servesAll(s, w, n)
			unknownIsUnavailable(s, w, n)
		}
	})
}

// review is what a server says of who asks.
type review struct {
	Status  int
	Message string
	User    map[string]any
}

func reviewAt(s *suite.S, w world, c lab.Credential, url string) review {
	s.Helper()
	r, err := askReview(s.Ctx, s.Client(w.Lab, c, lab.HTTP2), url)
	if err != nil {
		s.Fatal(err)
	}
	return r
}

func askReview(ctx context.Context, client *http.Client, url string) (review, error) {
	a, err := lab.Call(ctx, client, "POST", url+selfReviews, `{"apiVersion":"authentication.k8s.io/v1","kind":"SelfSubjectReview"}`, nil)
	if err != nil {
		return review{}, err
	}
	var body struct {
		Message string
		Status  json.RawMessage
	}
	if err := json.Unmarshal(a.Body, &body); err != nil {
		return review{}, fmt.Errorf("%w: %s", err, a.Body)
	}
	r := review{Status: a.Status, Message: body.Message}
	if a.Status == http.StatusCreated {
		var status struct{ UserInfo map[string]any }
		err = json.Unmarshal(body.Status, &status)
		r.User = status.UserInfo
	}
	return r, err
}

// everyCredential is one of each kind.
func everyCredential(s *suite.S, w world) map[string]lab.Credential {
	s.Helper()
	certificate, err := w.NewClientCertificate("carol", "lab:admins", "team a, O=b")
	if err != nil {
		s.Fatal(err)
	}
	stranger, err := lab.NewCA("stranger")
	if err != nil {
		s.Fatal(err)
	}
	foreign, err := stranger.IssueClient("carol", "system:masters")
	if err != nil {
		s.Fatal(err)
	}
	impersonate := func(c lab.Credential) lab.Credential {
		c.Header = http.Header{"Impersonate-User": {"frank"}, "Impersonate-Group": {"lab:readers", "system:authenticated"}}
		return c
	}
	return map[string]lab.Credential{
		"client certificate":                    certificate,
		"static token":                          w.Token("alice"),
		"service account token":                 serviceAccount(s, w),
		"impersonation by token":                impersonate(w.Token("alice")),
		"impersonation by certificate":          impersonate(certificate),
		"impersonation that is not allowed":     impersonate(w.Token("nobody")),
		"anonymous":                             lab.Anonymous,
		"bad token":                             {Token: "no such token"},
		"foreign certificate":                   lab.Certificate(foreign),
		"foreign certificate with a good token": {Cert: foreign, Token: w.Token("bob").Token},
	}
}

func serviceAccount(s *suite.S, w world) lab.Credential {
	s.Helper()
	client := s.Client(w.Lab, w.Admin(), lab.HTTP2)
	accounts := w.old.DirectURL() + "/api/v1/namespaces/default/serviceaccounts"
	if a := s.Call(client, "POST", accounts, `{"apiVersion":"v1","kind":"ServiceAccount","metadata":{"name":"grace"}}`, nil); a.Status != 201 && a.Status != 409 {
		s.Fatalf("creating a service account answered %d: %s", a.Status, a.Body)
	}
	a := s.Want(client, "POST", accounts+"/grace/token", `{"apiVersion":"authentication.k8s.io/v1","kind":"TokenRequest","spec":{}}`, 201, `"token"`)
	var request struct{ Status struct{ Token string } }
	if err := json.Unmarshal(a.Body, &request); err != nil {
		s.Fatal(err)
	}
	return lab.Credential{Token: request.Status.Token}
}

// worksFrom waits until every credential is to the front what it is to the server, and gives the time from begin.
func worksFrom(s *suite.S, w world, n *plane.Node, credentials map[string]lab.Credential, direct map[string]review, begin time.Time) time.Duration {
	s.Helper()
	ctx, cancel := context.WithTimeout(s.Ctx, 30*time.Second)
	defer cancel()
	type outcome struct {
		name string
		took time.Duration
		err  error
	}
	outcomes := make(chan outcome)
	for name, c := range credentials {
		client := s.Client(w.Lab, c, lab.HTTP2)
		go func() {
			err := plane.Eventually(ctx, name+" works", func() error {
				got, err := askReview(ctx, client, n.FrontURL())
				if err == nil && !reflect.DeepEqual(got, direct[name]) {
					err = fmt.Errorf("the front says %+v, the server %+v", got, direct[name])
				}
				return err
			})
			outcomes <- outcome{name, time.Since(begin), err}
		}()
	}
	var slowest time.Duration
	for range credentials {
		o := <-outcomes
		if o.err != nil {
			s.Errorf("%s: %v", o.name, o.err)
		}
		slowest = max(slowest, o.took)
	}
	return slowest
}

// servesAll asks the front for everything that the server says it serves, and for a watch and a write.
func servesAll(s *suite.S, w world, n *plane.Node) {
	s.Helper()
	client := s.Client(w.Lab, w.Token("alice"), lab.HTTP2)
	paths := []string{"/api", "/apis", "/api/v1", "/apis/apps/v1", "/openapi/v2", "/openapi/v3", "/version", "/readyz", "/livez",
		"/api/v1/configmaps?watch=1&timeoutSeconds=1"}
	for _, document := range []string{"/api", "/apis"} {
		a := s.Call(client, "GET", n.DirectURL()+document, "", http.Header{"Accept": {"application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"}})
		var list apidiscoveryv2.APIGroupDiscoveryList
		if err := json.Unmarshal(a.Body, &list); err != nil {
			s.Fatal(err)
		}
		for _, g := range list.Items {
			for _, v := range g.Versions {
				for _, r := range v.Resources {
					if slices.Contains(r.Verbs, "list") {
						paths = append(paths, strings.TrimSuffix(document+"/"+g.Name, "/")+"/"+v.Version+"/"+r.Resource)
					}
				}
			}
		}
	}
	for _, p := range paths {
		s.Want(client, "GET", n.FrontURL()+p, "", 200, "")
	}
	objects := n.FrontURL() + "/api/v1/namespaces/default/configmaps"
	s.Want(client, "POST", objects, `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"cold"}}`, 201, "cold")
	s.Want(client, "DELETE", objects+"/cold", "", 200, "")
	s.Logf("%s: %d paths", n.Name, len(paths))
}

// unknownIsUnavailable asks for what the server does not know: another may, and nobody can say so now.
func unknownIsUnavailable(s *suite.S, w world, n *plane.Node) {
	s.Helper()
	peerOnly := map[*plane.Node]string{w.old: migrations, w.updated: disruptionBudgets}[n]
	for _, protocol := range []lab.Protocol{lab.HTTP1, lab.HTTP2} {
		client := s.Client(w.Lab, w.Token("alice"), protocol)
		for _, path := range []string{peerOnly, peerOnly + "/x", "/apis/nobody.example.com/v1/things", "/apis/apps/v1/things", "/api/v1/namespaces/default/things"} {
			for _, method := range []string{"GET", "DELETE"} {
				a := s.Want(client, method, n.FrontURL()+path, "", 503, `"reason":"ServiceUnavailable"`)
				if got := a.Header.Get("Retry-After"); got != "1" {
					s.Errorf("%s %s has Retry-After %q", method, path, got)
				}
			}
		}
		// A missing object of a known API is no unknown API.
		s.Want(client, "GET", n.FrontURL()+"/api/v1/namespaces/default/configmaps/missing", "", 404, `"name":"missing"`)
	}
}

func testMovingToRouted(t *testing.T, w world) {
	suite.Scenario(t, "A6-move", "when xds-server starts, clients move from the fallback to the routed chain and no request fails", func(s *suite.S) {
		load := startSteady(s, w, localThing(w.old), localThing(w.updated))
		// A client that never closes a connection by itself has to find the peer-only API one day.
		client := s.Client(w.Lab, w.Token("alice"), lab.HTTP2)
		s.Want(client, "GET", w.old.FrontURL()+migrations, "", 503, "")
		for _, n := range w.Plane.Nodes {
			if counter(s, n, "http.fallback.downstream_cx_active") == 0 {
				s.Errorf("nobody is on the fallback chain of %s", n.Name)
			}
		}
		begin := time.Now()
		for _, n := range w.Plane.Nodes {
			if err := n.XDSServer.Start(); err != nil {
				s.Fatal(err)
			}
		}
		if err := w.WaitReady(s.Ctx); err != nil {
			s.Fatal(err)
		}
		fmt.Printf("       both fronts route %d ms after their xds-servers were started\n", time.Since(begin).Milliseconds())
		ctx, cancel := context.WithTimeout(s.Ctx, 30*time.Second)
		defer cancel()
		if err := plane.Eventually(ctx, "every client has moved", func() error {
			a, err := lab.Call(ctx, client, "GET", w.old.FrontURL()+migrations, "", nil)
			if err != nil || a.Status != 200 && a.Status != 503 {
				s.Errorf("the client that waits: %v %+v", err, a)
			}
			if err == nil && a.Status != 200 {
				return fmt.Errorf("a client that was there before still gets %d", a.Status)
			}
			for _, n := range w.Plane.Nodes {
				if left := counter(s, n, "http.fallback.downstream_cx_active"); left > 0 {
					return fmt.Errorf("%d connections are left on the fallback chain of %s", left, n.Name)
				}
			}
			return nil
		}); err != nil {
			s.Error(err)
		}
		load.stopClean()
	})
}
