package routing

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sync/errgroup"
	authenticationv1 "k8s.io/api/authentication/v1"
	auditv1 "k8s.io/apiserver/pkg/apis/audit/v1"

	"xds-server/test/e2e/suite"
	"xds-server/test/lab"
	"xds-server/test/plane"
)

// intruder is the user that nobody may become.
const intruder = "intruder"

// A field is a header's name and value, as a client writes them.
type field struct{ name, value string }

// forged would make the intruder of anyone, were they to arrive over the front-proxy certificate, and bring the request
// there.
var forged = []field{
	{"X-Remote-User", intruder}, {"X-Remote-Group", "system:masters"}, {"X-Remote-Uid", intruder},
	{"X-Remote-Extra-Scopes", intruder}, {"X-Remote-Extra-Authentication.kubernetes.io%2fcredential-id", intruder},
	{"X-Id-State", "fp"},
}

// A forgery is a set of well-formed header fields: they are ignored, the request is not.
type forgery struct {
	name   string
	fields []field
}

// renamed is forged with other names.
func renamed(f func(string) string) []field {
	out := slices.Clone(forged)
	for i := range out {
		out[i].name = f(out[i].name)
	}
	return out
}

var forgeries = []forgery{
	{"as the apiserver reads them", forged},
	{"in upper case", renamed(strings.ToUpper)},
	{"in lower case", renamed(strings.ToLower)},
	{"in mixed case", renamed(func(n string) string { return strings.ReplaceAll(strings.ToLower(n), "r", "R") })},
	{"with underscores", renamed(func(n string) string { return strings.ReplaceAll(n, "-", "_") })},
	{"with one underscore", renamed(func(n string) string { return strings.Replace(n, "-", "_", 1) })},
	{"with escapes", renamed(func(n string) string { return strings.Replace(n, "-", "%2d", 1) })},
	{"with escaped names of extras", []field{
		{"X-Remote-Extra-a%2fb", intruder}, {"X-Remote-Extra-%41", intruder}, {"X-Remote-Extra-%", intruder}, {"X-Remote-Extra-", intruder}, {"X-Remote-", intruder},
	}},
	{"twice", append(slices.Clone(forged), forged...)},
	{"empty and then not", append([]field{{"X-Remote-User", ""}, {"X-Remote-Group", ""}, {"X-Id-State", ""}}, forged...)},
	{"empty", []field{{"X-Remote-User", ""}, {"X-Remote-Group", ""}, {"X-Remote-Uid", ""}, {"X-Remote-Extra-Scopes", ""}, {"X-Id-State", ""}}},
	{"only groups, UID and extras", forged[1:]},
	{"only a group", forged[1:2]},
	{"only an extra", forged[3:4]},
	{"with the state plain", append(slices.Clone(forged[:5]), field{"x-id-state", "plain"})},
	{"with both states", append(slices.Clone(forged), field{"x-id-state", "plain"}, field{"x-id-state", "fp"})},
	{"with an unknown state", append(slices.Clone(forged[:5]), field{"x-id-state", "root"})},
	{"as of a native peer", append(slices.Clone(forged), field{"X-Kubernetes-Peer-Proxied", "true"}, field{"x-kubernetes-peer-proxied", "TRUE"}, field{"X-Peer-Undelivered", "true"})},
	{"with a route", append(slices.Clone(forged), field{"X-Gvr", "storagemigration.k8s.io/v1/storageversionmigrations"}, field{"x-subresource", "status"})},
	{"with Envoy's own headers", append(slices.Clone(forged),
		field{"x-forwarded-client-cert", `Subject="CN=intruder,O=system:masters"`}, field{"x-envoy-original-path", "/"}, field{"x-envoy-internal", "true"},
		field{"x-envoy-upstream-alt-stat-name", "a"}, field{"x-envoy-retry-on", "5xx"}, field{"x-envoy-decorator-operation", "a"})},
	{"with names of other proxies", append(slices.Clone(forged), field{"X-Forwarded-User", intruder}, field{"X-Forwarded-For", "127.0.0.1"}, field{"Forwarded", "for=127.0.0.1"})},
}

// smugglers are those who try: with every kind of credential, and none.
func smugglers(s *suite.S, w world) []namedCredential {
	s.Helper()
	other, err := lab.NewCA("kubernetes")
	if err != nil {
		s.Fatal(err)
	}
	pair := func(ca *lab.Pair, name string) *lab.Pair {
		p, err := ca.IssueClient(name, "lab:others")
		if err != nil {
			s.Fatal(err)
		}
		return p
	}
	foreign := pair(other, "carol")
	frontProxy, err := w.PKI.FrontProxyCA.IssueClient("front-proxy-client")
	if err != nil {
		s.Fatal(err)
	}
	return []namedCredential{
		{name: "nothing"},
		{name: "token", Credential: w.Token("bob")},
		{name: "bad token", Credential: lab.Credential{Token: "no such token"}},
		{name: "certificate", Credential: lab.Certificate(pair(w.PKI.CA, "carol"))},
		{name: "certificate without a CN", Credential: lab.Certificate(clientCertificate(s, w.PKI.CA, subject(text(o, "lab:others"))))},
		{name: "foreign certificate", Credential: lab.Certificate(foreign)},
		{name: "foreign certificate and token", Credential: lab.Credential{Cert: foreign, Token: w.Token("bob").Token}},
		{name: "front-proxy certificate", Credential: lab.Certificate(frontProxy)},
	}
}

func TestNobodySmugglesAnIdentity(t *testing.T) {
	suite.Scenario(t, "11", "headers that would set an identity, a route or a proxy's mark are ignored, in any spelling, with any credential", func(s *suite.S) {
		w := upgrade(s)
		var g errgroup.Group
		for _, c := range smugglers(s, w) {
			g.Go(func() error {
				for _, problem := range smuggle(s, w, w.old, c, 0) {
					s.Error(problem)
				}
				return nil
			})
		}
		_ = g.Wait() // nothing fails
		for _, n := range []*plane.Node{w.old, w.updated} {
			for _, e := range intruders(s, w, n) {
				s.Errorf("%s took %q, %s %s, for %+v", n.Name, e.UserAgent, e.Verb, e.RequestURI, e.User)
			}
		}
	})
}

func TestNoClientChoosesARoute(t *testing.T) {
	suite.Scenario(t, "11-routes", "no client says where its request goes, or that it was proxied already", func(s *suite.S) {
		w := upgrade(s)
		marks := http.Header{
			"X-Gvr": {"storagemigration.k8s.io/v1/storageversionmigrations"}, "X-Subresource": {"status"}, "X-Id-State": {"fp"},
			"X-Kubernetes-Peer-Proxied": {"true"}, "X-Peer-Undelivered": {"true"},
		}
		for _, protocol := range protocols {
			client := s.Client(w.Lab, w.Token("alice"), protocol)
			// Paths that are not classified, and so leave the key to whoever wrote it.
			for _, path := range []string{"/version", "/api", "/apis", "/api/v1/namespaces/default/", "//version", "/version?x-gvr", "/apis/apps%2Fv1/deployments"} {
				a := s.Call(client, "GET", w.old.FrontURL()+path, "", marks)
				if a.Header.Get("X-Kubernetes-Peer-Proxied") != "" {
					s.Errorf("%s with a forged key went to a peer: %d", path, a.Status)
				}
				if path == "/version" && !strings.Contains(string(a.Body), lab.Kube136) {
					s.Errorf("%s was not answered by the local server: %s", path, a.Body)
				}
			}
			// Directly such a mark keeps a server from proxying; here the request still goes to the peer.
			a := s.Call(client, "GET", w.old.FrontURL()+migrations, "", marks)
			if a.Status != http.StatusOK || a.Header.Get("X-Kubernetes-Peer-Proxied") != "true" {
				s.Errorf("a forged mark kept a request from its peer: %d %v %s", a.Status, a.Header, a.Body)
			}
		}
	})
}

func TestTheFrontProxyCertificateIsNobodyAtTheFront(t *testing.T) {
	suite.Scenario(t, "11-front-proxy", "the front-proxy certificate acts as anyone at a server, and as nobody at the front", func(s *suite.S) {
		w := upgrade(s)
		p, err := w.PKI.FrontProxyCA.IssueClient("front-proxy-client")
		if err != nil {
			s.Fatal(err)
		}
		c := lab.Credential{Cert: p, Header: http.Header{"X-Remote-User": {"erin"}, "X-Remote-Group": {"lab:readers"}}}
		for _, protocol := range protocols {
			a := newAsker(s, w, c, protocol)
			if direct := a.whoAmI(w.old.DirectURL()); direct.User.Username != "erin" {
				s.Errorf("directly the front-proxy certificate is %+v", direct)
			}
			if front := a.whoAmI(w.old.FrontURL()); front.Status != http.StatusUnauthorized {
				s.Errorf("at the front the front-proxy certificate is %+v", front)
			}
			if front := a.ask("GET", w.old.FrontURL()+migrations, "", s.Name()); front.Status != http.StatusUnauthorized {
				s.Errorf("at the peer the front-proxy certificate is %+v", front)
			}
			a.close()
		}
	})
}

// smuggle tries everything at a front with one credential, and tells what was not as without the forged headers. A limit
// above 0 is the number of forgeries that are tried, and nothing but forgeries.
func smuggle(s *suite.S, w world, n *plane.Node, c namedCredential, limit int) (problems []string) {
	s.Helper()
	x := exchange{s: s, address: n.Front, tls: w.TLS(c.Credential), agent: "smuggler " + c.name}
	if c.Token != "" {
		x.authorization = []field{{"Authorization", "Bearer " + c.Token}}
	}
	known := forgeries
	if limit > 0 {
		known = forgeries[:limit]
	}
	for _, protocol := range protocols {
		clean := map[string]verdict{}
		for _, path := range []string{whoamiPath, migrations} {
			got, err := x.one(protocol, path, nil)
			if err != nil {
				return append(problems, fmt.Sprintf("%s, HTTP/%d %s, nothing forged: %v", c.name, protocol, path, err))
			}
			clean[path] = got
			for _, f := range known {
				got, err := x.one(protocol, path, f.fields)
				if err != nil {
					problems = append(problems, fmt.Sprintf("%s, HTTP/%d %s, headers %s: %v", c.name, protocol, path, f.name, err))
				} else if diff := clean[path].diff(got); diff != "" {
					problems = append(problems, fmt.Sprintf("%s, HTTP/%d %s, headers %s: without (-) and with them (+)\n%s", c.name, protocol, path, f.name, diff))
				}
			}
		}
		if limit > 0 {
			continue
		}
		malformed := x.malformedHTTP1
		if protocol == lab.HTTP2 {
			malformed = x.malformedHTTP2
		}
		served := 0
		for name, answers := range malformed() {
			for _, got := range answers {
				if protocol == lab.HTTP1 && got.Status > 0 {
					served++
				}
				if got.Status == http.StatusCreated && got.diff(clean[whoamiPath]) != "" || strings.Contains(got.Message, intruder) {
					problems = append(problems, fmt.Sprintf("%s, HTTP/%d, %s: %+v", c.name, protocol, name, got))
				}
			}
		}
		// In HTTP/2 nearly all of them end the connection; in HTTP/1.1 they are answered, if only with a 400.
		if protocol == lab.HTTP1 && served < 60 {
			problems = append(problems, fmt.Sprintf("%s: only %d answers to malformed requests", c.name, served))
		}
	}
	return problems
}

// intruders are the requests that a server took for someone that none of the smugglers is. A last request is waited for,
// so that the log has all before it.
func intruders(s *suite.S, w world, n *plane.Node) (found []auditv1.Event) {
	s.Helper()
	agent := s.Name() + " has looked at " + n.Name
	a := newAsker(s, w, w.Admin(), lab.HTTP1)
	a.ask("GET", n.DirectURL()+"/version", "", agent)
	a.close()
	auditByAgent(s, n.Node, agent)
	events, err := n.Audit()
	if err != nil {
		s.Fatal(err)
	}
	for _, e := range events {
		if isIntruder(e.User) || strings.HasPrefix(e.UserAgent, "smuggler") && slices.Contains(e.User.Groups, "system:masters") {
			found = append(found, e)
		}
	}
	return found
}

func isIntruder(u authenticationv1.UserInfo) bool {
	return strings.Contains(fmt.Sprintf("%+v", u), intruder)
}
