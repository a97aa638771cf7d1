package routing

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	authenticationv1 "k8s.io/api/authentication/v1"
	auditv1 "k8s.io/apiserver/pkg/apis/audit/v1"

	"xds-server/test/e2e"
	"xds-server/test/e2e/suite"
	"xds-server/test/lab"
	"xds-server/test/plane"
	"xds-server/test/streamer"
)

const configMaps = "/api/v1/namespaces/" + e2e.StreamNamespace + "/configmaps"

func TestKubectlStreamsThroughTheFront(t *testing.T) {
	suite.Scenario(t, "A8-streams", "kubectl of both versions: logs -f, exec, attach, stdin and port-forward, by websocket and SPDY", func(s *suite.S) {
		w := upgrade(s)
		stub := e2e.StandInKubelet(s, w.Lab, w.old.Node)
		for _, c := range []struct {
			front        *plane.Node
			version, pod string
		}{
			{w.old, lab.Kube136, e2e.TranslatedPod},
			{w.old, lab.Kube137, e2e.PassedOnPod},
			{w.updated, lab.Kube136, e2e.PassedOnPod},
		} {
			report(s, streamsAt(w, c.front.FrontURL(), "alice", c.pod).Kubectl(s.Ctx, c.version)...)
		}
		for _, verb := range []string{"exec", "attach", "portForward"} {
			for _, kind := range e2e.Upgrades {
				if stub.Requests()[streamer.Request{Verb: verb, Upgrade: kind}] == 0 {
					s.Errorf("no %s reached the kubelet over %s", verb, kind)
				}
			}
		}
	})
}

func TestBytesAndStreamsPassAsTheyAre(t *testing.T) {
	suite.Scenario(t, "streams", "uploads and lists of 16 MB, logs line by line, and streams that are silent, past every default limit of 15 s", func(s *suite.S) {
		w := upgrade(s)
		e2e.StandInKubelet(s, w.Lab, w.old.Node)
		streams := streamsAt(w, w.old.FrontURL(), "alice", e2e.TranslatedPod)
		report(s, streams.AsUser(s.Ctx)...)
		for _, protocol := range []lab.Protocol{lab.HTTP1, lab.HTTP2} {
			report(s, streams.Bulk(s.Ctx, protocol))
		}
		results := make(chan e2e.StreamResult)
		go func() { results <- streams.Logs(s.Ctx, lab.HTTP1, 18*time.Second) }()
		go func() { results <- streams.Logs(s.Ctx, lab.HTTP2, 18*time.Second) }()
		go func() { results <- streams.Idle(s.Ctx, 18*time.Second, configMap("idle")) }()
		for range 3 {
			report(s, <-results)
		}
	})
}

// On the fallback chain connections have an age, and everything that Envoy does there stands in the bootstrap: so here
// it can be shown that age does not cut streams, and that a limit that would is noticed.
func TestStreamsOutliveTheFallbackChainsConnectionAge(t *testing.T) {
	suite.Scenario(t, "streams-fallback", "without xds-server, streams outlive the connection age; an idle timeout, or no websockets, fails the checks", func(s *suite.S) {
		w := alone(s, lab.Config{Nodes: []lab.NodeConfig{{Name: "aged", Version: lab.Kube136}, {Name: "broken", Version: lab.Kube137}}},
			plane.Options{NoXDSServer: true, Edit: func(bootstrap string) string {
				if strings.Contains(bootstrap, `id: "aged"`) {
					return strings.ReplaceAll(bootstrap, "max_connection_duration: 60s", "max_connection_duration: 1s")
				}
				return strings.ReplaceAll(bootstrap, "idle_timeout: 0s", "idle_timeout: 1s")
			}})
		aged, broken := w.Plane.Nodes["aged"], w.Plane.Nodes["broken"]
		e2e.StandInKubelet(s, w.Lab, aged.Node)
		for _, n := range []*plane.Node{aged, broken} {
			if err := n.Envoy.WaitReady(s.Ctx); err != nil {
				s.Fatal(err)
			}
		}
		results := make(chan e2e.StreamResult)
		// Envoy drains a connection for 5 s once it is too old.
		go func() {
			results <- streamsAt(w, aged.FrontURL(), "alice", e2e.TranslatedPod).Idle(s.Ctx, 10*time.Second, configMap("idle-aged"))
		}()
		go func() {
			results <- streamsAt(w, aged.FrontURL(), "alice", e2e.TranslatedPod).Logs(s.Ctx, lab.HTTP2, 10*time.Second)
		}()
		r := streamsAt(w, broken.FrontURL(), "alice", e2e.TranslatedPod).Idle(s.Ctx, 5*time.Second, configMap("idle-broken"))
		s.Count(r.Requests)
		for _, part := range []string{"watch over HTTP/1", "watch over HTTP/2", "exec over websocket", "exec over spdy/3.1"} {
			if !strings.Contains(fmt.Sprint(r.Err), part) {
				s.Errorf("with an idle timeout nothing was noticed of %s: %v", part, r.Err)
			}
		}
		report(s, <-results, <-results)
		stats, err := aged.EnvoyAdmin(s.Ctx, "GET", "/stats?filter=downstream_cx_max_duration_reached")
		if err != nil || !regexp.MustCompile(`fallback.*max_duration_reached: [1-9]`).Match(stats) {
			s.Errorf("no connection of the fallback chain has reached its age: %s (%v)", stats, err)
		}
		refuseWebsockets(s, broken)
		for _, r := range streamsAt(w, broken.FrontURL(), "alice", e2e.TranslatedPod).Kubectl(s.Ctx, lab.Kube137) {
			s.Count(r.Requests)
			if noticed := r.Err != nil; noticed != strings.Contains(r.Name, "over websocket") {
				s.Errorf("with a front that refuses websockets: %s: %v", r.Name, r.Err)
			}
		}
	})
}

// refuseWebsockets makes kubectl fall back to SPDY at a front.
func refuseWebsockets(s *suite.S, n *plane.Node) {
	s.Helper()
	before, err := os.ReadFile(n.Bootstrap)
	if err != nil {
		s.Fatal(err)
	}
	after := bytes.ReplaceAll(before, []byte("{upgrade_type: websocket}, "), nil)
	if bytes.Equal(before, after) {
		s.Fatal("the bootstrap has no websockets to take away")
	}
	if err := os.WriteFile(n.Bootstrap, after, 0o644); err != nil {
		s.Fatal(err)
	}
	for _, step := range []func() error{
		func() error { return n.Envoy.Stop(s.Ctx) }, n.Envoy.Start, func() error { return n.Envoy.WaitReady(s.Ctx) },
	} {
		if err := step(); err != nil {
			s.Fatal(err)
		}
	}
}

// A channel is one way in which a request reaches a server.
type channel struct {
	name string
	do   func(context.Context, e2e.Streams) error
}

var channels = []channel{
	{"HTTP/1.1", func(ctx context.Context, s e2e.Streams) error { return s.Logs(ctx, lab.HTTP1, 0).Err }},
	{"HTTP/2", func(ctx context.Context, s e2e.Streams) error { return s.Logs(ctx, lab.HTTP2, 0).Err }},
	{"exec over a websocket", func(ctx context.Context, s e2e.Streams) error { return s.Exec(ctx, "websocket") }},
	{"exec over SPDY", func(ctx context.Context, s e2e.Streams) error { return s.Exec(ctx, "spdy/3.1") }},
	{"watch over a websocket", func(ctx context.Context, s e2e.Streams) error { return s.WebsocketWatch(ctx, configMap("seen")).Err }},
}

func TestACredentialWorksTheSameOverEveryProtocol(t *testing.T) {
	suite.Scenario(t, "A3", "a certificate or a token is the same user over HTTP/1.1, HTTP/2, a websocket and SPDY as directly", func(s *suite.S) {
		w := upgrade(s)
		e2e.StandInKubelet(s, w.Lab, w.old.Node)
		for name, credential := range streamCredentials(s, w) {
			for _, c := range channels {
				var users [2]authenticationv1.UserInfo
				for i, url := range []string{w.old.DirectURL(), w.old.FrontURL()} {
					streams := streamsAt(w, url, "alice", e2e.TranslatedPod)
					streams.Credential = credential
					streams.UserAgent = fmt.Sprintf("A3 %s %s %d", name, c.name, i)
					if err := c.do(s.Ctx, streams); err != nil {
						s.Errorf("%s, %s at %s: %v", name, c.name, url, err)
					}
					s.Count(1)
					users[i] = auditedUser(s, w.old.Node, streams.UserAgent)
				}
				if diff := cmp.Diff(users[0], users[1]); diff != "" {
					s.Errorf("%s, %s: the user directly (-) is not the one through the front (+):\n%s", name, c.name, diff)
				}
			}
		}
		for _, user := range []string{"nobody"} {
			streams := streamsAt(w, w.old.FrontURL(), user, e2e.TranslatedPod)
			report(s, streams.Refused(s.Ctx)...)
			report(s, streams.WebsocketWatchRefused(s.Ctx, configMaps, 403))
		}
		streams := streamsAt(w, w.old.FrontURL(), "nobody", e2e.TranslatedPod)
		streams.Credential = lab.Credential{Token: "no such token"}
		report(s, streams.WebsocketWatchRefused(s.Ctx, configMaps, 401))
	})
}

func TestAWebsocketWatchOfAPeerOnlyAPIRunsAsItsUser(t *testing.T) {
	suite.Scenario(t, "9", "a websocket watch of a peer-only API runs as its user", func(s *suite.S) {
		w := upgrade(s)
		for name, credential := range streamCredentials(s, w) {
			streams := streamsAt(w, w.old.FrontURL(), "alice", "")
			streams.Credential = credential
			streams.UserAgent = "9 " + name
			report(s, streams.WebsocketWatch(s.Ctx, e2e.Object{
				Collection: migrations, Name: "watched",
				JSON: `{"apiVersion":"storagemigration.k8s.io/v1","kind":"StorageVersionMigration","metadata":{"name":"watched"},"spec":{"resource":{"group":"","resource":"secrets"}}}`,
			}))
			// The peer's own word on who it was: the user that the same credential is at the peer directly.
			got := auditedUser(s, w.updated.Node, streams.UserAgent)
			direct := streamsAt(w, w.updated.DirectURL(), "alice", "")
			direct.Credential, direct.UserAgent = credential, "9 direct "+name
			report(s, direct.WebsocketWatch(s.Ctx, e2e.Object{
				Collection: "/api/v1/namespaces/default/configmaps", Name: "watched",
				JSON: `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"watched"}}`,
			}))
			if diff := cmp.Diff(auditedUser(s, w.updated.Node, direct.UserAgent), got); diff != "" {
				s.Errorf("%s: the user at the peer directly (-) is not the one through the front (+):\n%s", name, diff)
			}
		}
		streams := streamsAt(w, w.old.FrontURL(), "nobody", "")
		report(s, streams.WebsocketWatchRefused(s.Ctx, migrations, 403))
		streams.Credential = lab.Credential{Token: "no such token"}
		report(s, streams.WebsocketWatchRefused(s.Ctx, migrations, 401))
	})
}

func streamCredentials(s *suite.S, w world) map[string]lab.Credential {
	s.Helper()
	certificate, err := w.NewClientCertificate("carol", "lab:admins", "lab:others")
	if err != nil {
		s.Fatal(err)
	}
	return map[string]lab.Credential{"token": w.Token("alice"), "certificate": certificate}
}

func streamsAt(w world, url, user, pod string) e2e.Streams {
	return e2e.Streams{Lab: w.Lab, URL: url, Credential: w.Token(user), Namespace: e2e.StreamNamespace, Pod: pod}
}

func configMap(name string) e2e.Object {
	return e2e.Object{Collection: configMaps, Name: name, JSON: fmt.Sprintf(`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":%q}}`, name)}
}

// auditedUser is whom a server took the sender of a request for.
func auditedUser(s *suite.S, n *lab.Node, userAgent string) authenticationv1.UserInfo {
	s.Helper()
	ctx, cancel := context.WithTimeout(s.Ctx, 10*time.Second)
	defer cancel()
	e, err := n.WaitAudit(ctx, func(e *auditv1.Event) bool { return e.UserAgent == userAgent })
	if err != nil {
		s.Fatalf("%s: %v", userAgent, err)
	}
	return e.User
}

func report(s *suite.S, results ...e2e.StreamResult) {
	s.Helper()
	for _, r := range results {
		s.Count(r.Requests)
		if r.Err != nil {
			s.Errorf("%s: %v", r.Name, r.Err)
		}
	}
}
