package routing

import (
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	auditv1 "k8s.io/apiserver/pkg/apis/audit/v1"

	"xds-server/test/e2e/suite"
	"xds-server/test/lab"
	"xds-server/test/plane"
)

// targets are what follows a resource's path: everything that some proxy has tidied up once.
var targets = []string{
	"", "/", "//", "//x", "/x/", "/x//", "/x//y", "/x/y", "/x/y/z",
	"/x%2Fy", "/x%2fy", "/x%20y", "/x+y", "/x%2By", "/%78", "/x%25y", "/x%252Fy", "/x%C3%A4", "/x%00y", "/x%", "/%zz", "/x%2",
	"/x;y=1", "/x;", ";x=1", "/;", "/x;a/y", "/.", "/..", "/./x", "/../x", "/x/..", "/x/../y", "/%2e%2e/x", "/%2E", "/x%2F..%2Fy",
	"/x!$&'()*,=:@~y", "/x\"y", "/x<y>", "/x|y", "/x^y", "/x`y", "/x{y}", "/x[y]", "/x\\y", "/x\xc3\xa4",
	"?", "??", "?a", "?a=1&a=2&b", "?b=2&a=1", "?&&a=1&", "?a=b=c", "?a=1;b=2", "?limit=1;continue=x", "?limit=1&limit=2",
	"?labelSelector=a%3Db", "?labelSelector=a=b", "?labelSelector=a%3db%2Cc", "?fieldSelector=metadata.name%3D%2F", "?x=%zz", "?x=%",
	"?x=/a//b/../c", "?x=http://y/?z", "?a+b=%20+", "?x=\"<>|^`{}[]\\", "?x=\xc3\xa4", "/x?y/z", "/x?//", "/x%3Fy",
	"/" + strings.Repeat("long", 5000), "?x=" + strings.Repeat("long", 10000),
}

// nameless are targets with a subresource that can't be one's name.
var nameless = []string{"/x//y", "/x/..", "/x/../y", "/x%2F..%2Fy"}

func TestPathsAndQueriesPassByteForByte(t *testing.T) {
	suite.Scenario(t, "23", "paths and queries pass byte for byte, local and proxied, over HTTP/1.1 and HTTP/2; the answer and the audited addresses are as directly", func(s *suite.S) {
		w := upgrade(s)
		r := newRaw(s, w, w.Token("alice"))
		var sent []*sentTarget
		for i, collection := range []string{"/api/v1/namespaces/default/configmaps", migrations} {
			for j, target := range targets {
				for _, protocol := range []lab.Protocol{lab.HTTP1, lab.HTTP2} {
					x := &sentTarget{path: collection + target, protocol: protocol, by: w.old, agent: fmt.Sprintf("bytes %d %d %d", i, j, protocol)}
					if j%2 == 1 {
						x.fields = []field{{"x-forwarded-for", "192.0.2.7, 192.0.2.8"}}
					}
					x.front = r.ask(protocol, w.old.Front, x.path, append(x.fields, field{"user-agent", x.agent})...)
					if len(x.front.Header.Values("X-Kubernetes-Peer-Proxied")) > 0 {
						x.by = w.updated
					}
					x.direct = r.ask(protocol, x.by.Direct, x.path, append(x.fields, field{"user-agent", x.agent + " directly"})...)
					sent = append(sent, x)
				}
			}
		}
		logs, proxied, asSent := map[*plane.Node]map[string]auditv1.Event{}, 0, 0
		for _, n := range []*plane.Node{w.old, w.updated} {
			last := "bytes last " + n.Name
			r.ask(lab.HTTP1, n.Direct, "/version", field{"user-agent", last})
			logs[n] = auditByAgent(s, n.Node, last)
		}
		for _, x := range sent {
			if x.by == w.updated {
				proxied++
			}
			if x.check(s, logs[x.by], r.from.String()) {
				asSent++
			}
		}
		s.Logf("%d targets, of which %d were proxied and %d audited as sent", len(sent), proxied, asSent)
	})
}

// sentTarget is one target as it was sent to the old server's front, and to the server that answered.
type sentTarget struct {
	path, agent   string
	protocol      lab.Protocol
	fields        []field
	by            *plane.Node
	front, direct lab.Answer
}

// status is what the front has to answer, which is the server's own answer but for what can't be had.
func (x *sentTarget) status() int {
	switch {
	case x.direct.Status == 0 && x.protocol == lab.HTTP2:
		return 502 // the server breaks off, which is no answer that could be passed on
	case x.refused():
		return 400
	case x.by.Name == "new" && slices.Contains(nameless, strings.TrimPrefix(x.path, migrations)):
		return 503 // no server serves it, but the guard sees no more than an unknown API of a peer that was to serve it
	default:
		return x.direct.Status
	}
}

// refused is what Envoy's HTTP/1.1 parser does not take: bytes beyond ASCII, which clients have to escape.
func (x *sentTarget) refused() bool {
	return x.protocol == lab.HTTP1 && strings.Contains(x.path, "\xc3")
}

// check compares what went through the front with the same at that server directly. It tells whether the server's audit
// log has it as it was sent, which is not so if the server itself writes it in another way.
func (x *sentTarget) check(s *suite.S, log map[string]auditv1.Event, client string) bool {
	s.Helper()
	if want := x.status(); x.front.Status != want {
		s.Errorf("%v %.80q answered %d, want %d: %.200s", x.protocol, x.path, x.front.Status, want, x.front.Body)
		return false
	}
	front, ok := log[x.agent]
	direct, also := log[x.agent+" directly"]
	if ok != also && !x.refused() {
		s.Errorf("%v %.80q is audited: %t, directly: %t", x.protocol, x.path, ok, also)
	}
	if !ok || !also {
		return false
	}
	if front.RequestURI != direct.RequestURI {
		s.Errorf("%v %.80q arrived as %.80q, directly as %.80q", x.protocol, x.path, front.RequestURI, direct.RequestURI)
	}
	// The address that the server is connected to comes last, and is Envoy's own.
	n := len(direct.SourceIPs)
	if !slices.Equal(front.SourceIPs[:min(n, len(front.SourceIPs))], direct.SourceIPs) || direct.SourceIPs[n-1] != client {
		s.Errorf("%v %.80q came from %v, directly from %v, want %s", x.protocol, x.path, front.SourceIPs, direct.SourceIPs, client)
	}
	return front.RequestURI == x.path
}

func TestAnswersKeepTheirHeaders(t *testing.T) {
	suite.Scenario(t, "23-answers", "answers have each header that they have directly, as often, and none of Envoy's; only a proxied one says so", func(s *suite.S) {
		w := upgrade(s)
		for name, credential := range streamCredentials(s, w) {
			r := newRaw(s, w, credential)
			for _, path := range []string{
				// Discovery documents are merged here: the discovery suite has their headers.
				"/livez", "/api/v1/namespaces/default", "/api/v1/namespaces/default/configmaps", "/api/v1/namespaces/default/configmaps/none",
				"/version", "/readyz", "/metrics", "/nothing", migrations, migrations + "/none", migrations + "?watch=1&timeoutSeconds=1",
			} {
				for _, protocol := range []lab.Protocol{lab.HTTP1, lab.HTTP2} {
					for _, accept := range []string{"application/json", "application/vnd.kubernetes.protobuf, */*"} {
						if strings.Contains(path, "watch=1") && (name != "token" || accept != "application/json") {
							continue // each takes a second
						}
						// The last three would have Envoy give up, repeat and tell more.
						fields := []field{{"accept", accept}, {"accept-encoding", "gzip"}, {"x-envoy-upstream-rq-timeout-ms", "1"},
							{"x-envoy-retry-on", "retriable-4xx,5xx"}, {"x-envoy-force-trace", "true"}}
						front := r.ask(protocol, w.old.Front, path, fields...)
						by, but := w.old, []string(nil)
						if strings.HasPrefix(path, migrations) {
							by, but = w.updated, []string{"X-Kubernetes-Peer-Proxied"}
						}
						direct := r.ask(protocol, by.Direct, path, fields...)
						if front.Status != direct.Status || front.Status == 0 {
							s.Errorf("%s %s answered %d, directly %d", name, path, front.Status, direct.Status)
						}
						for _, fault := range headerFaults(direct.Header, front.Header, but...) {
							s.Errorf("%s %s over %v: %s", name, path, protocol, fault)
						}
					}
				}
			}
		}
	})
}

// requestHeaders compares what reaches the extension apiserver by way of the new server directly, through its front, and
// through the old one's, which can't reach it itself.
func requestHeaders(s *suite.S, w world, x *extension) {
	s.Helper()
	x.cutOff(w.old, true)
	x.touch(s, w, "the old server is cut off again")
	freshness(s, w, w.old, extensionGroup, "Stale")
	viewed(s, w)
	for _, fault := range headersChanged(s, w) {
		s.Error(fault)
	}

	bootstrap, err := os.ReadFile(w.old.Bootstrap)
	if err != nil {
		s.Fatal(err)
	}
	edited := strings.NewReplacer("suppress_envoy_headers: true", "suppress_envoy_headers: false", "server_header_transformation: PASS_THROUGH",
		"server_header_transformation: OVERWRITE", "generate_request_id: false", "generate_request_id: true").Replace(string(bootstrap))
	if err := os.WriteFile(w.old.Bootstrap, []byte(edited), 0o644); err != nil {
		s.Fatal(err)
	}
	w.old.Envoy.Kill()
	startAgain(s, w.old.Envoy)
	if err := w.old.WaitRouted(s.Ctx); err != nil {
		s.Fatal(err)
	}
	faults := fmt.Sprint(headersChanged(s, w))
	for _, part := range []string{"X-Envoy-", "Server: ", "X-Request-Id: "} {
		if !strings.Contains(faults, part) {
			s.Errorf("with Envoy's own headers let through, the check does not see %s in %s", part, faults)
		}
	}
}

// headersChanged says in which way the two fronts change what the extension apiserver gets and answers.
func headersChanged(s *suite.S, w world) (faults []string) {
	s.Helper()
	for name, credential := range streamCredentials(s, w) {
		r := newRaw(s, w, credential)
		for _, protocol := range []lab.Protocol{lab.HTTP1, lab.HTTP2} {
			fields := []field{
				{"accept", "application/json"}, {"x-custom", "one"}, {"x-custom", "two"}, {"x-empty", ""}, {"x-forwarded-for", "192.0.2.7"},
				{"cookie", "a=b"}, {"user-agent", "as it is"}, {"x-envoy-retry-on", "5xx"}, {"accept-encoding", "gzip, br"},
			}
			direct := r.ask(protocol, w.updated.Direct, echoes+"/one", fields...)
			for _, n := range []*plane.Node{w.updated, w.old} {
				answer := r.ask(protocol, n.Front, echoes+"/one", fields...)
				before, after := echoed(s, direct).Header, echoed(s, answer).Header
				// What would steer Envoy is taken out, and Envoy adds its own address.
				all := append(headerFaults(direct.Header, answer.Header, "X-Kubernetes-Peer-Proxied"),
					headerFaults(before, after, "X-Kubernetes-Peer-Proxied", "X-Envoy-Retry-On", "X-Forwarded-For")...)
				have, want := squeeze(after.Get("X-Forwarded-For")), squeeze(before.Get("X-Forwarded-For")+",127.0.0.1")
				if have != want || want != "192.0.2.7,"+r.from.String()+",127.0.0.1" {
					all = append(all, fmt.Sprintf("X-Forwarded-For: %s, want %s", have, want))
				}
				for _, fault := range all {
					faults = append(faults, fmt.Sprintf("%s at %s over %v: %s", name, n.Name, protocol, fault))
				}
			}
		}
	}
	return faults
}

func squeeze(list string) string { return strings.ReplaceAll(list, " ", "") }

func echoed(s *suite.S, a lab.Answer) (e echo) {
	s.Helper()
	if err := json.Unmarshal(a.Body, &e); err != nil || a.Status != 200 {
		s.Fatalf("the extension apiserver answered %d: %s", a.Status, a.Body)
	}
	return e
}
