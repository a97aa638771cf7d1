// Package integration proves the stand-in kubelet, and what the end-to-end tests do with it, on real kube-apiservers
// with no proxy before them.
package integration

import (
	"fmt"
	"testing"
	"time"

	"xds-server/test/e2e"
	"xds-server/test/lab"
	"xds-server/test/streamer"
)

func TestMain(m *testing.M) {
	lab.Main(m, lab.Etcd, lab.KubeAPIServer(lab.Kube136), lab.KubeAPIServer(lab.Kube137), lab.Kubectl(lab.Kube136), lab.Kubectl(lab.Kube137))
}

func TestEveryStreamWorksAtAServerDirectly(t *testing.T) {
	l := lab.ForTest(t, lab.Config{Nodes: []lab.NodeConfig{
		{Name: "old", Version: lab.Kube136},
		{Name: "new", Version: lab.Kube137},
	}})
	stub := e2e.StandInKubelet(t, l, l.Node("old"))
	certificate, err := l.NewClientCertificate("carol", "lab:admins")
	if err != nil {
		t.Fatal(err)
	}
	collection := "/api/v1/namespaces/" + e2e.StreamNamespace + "/configmaps"
	object := e2e.Object{Collection: collection, Name: "seen", JSON: `{"metadata":{"name":"seen"}}`}
	for _, n := range l.Nodes {
		for _, pod := range []string{e2e.TranslatedPod, e2e.PassedOnPod} {
			for name, credential := range map[string]lab.Credential{"token": l.Token("alice"), "certificate": certificate} {
				s := e2e.Streams{Lab: l, URL: n.DirectURL(), Credential: credential, Namespace: e2e.StreamNamespace, Pod: pod}
				t.Run(fmt.Sprintf("%s/%s/%s", n.Name, pod, name), func(t *testing.T) {
					report(t, s.AsUser(t.Context())...)
					report(t, s.WebsocketWatch(t.Context(), object))
				})
			}
			nobody := e2e.Streams{Lab: l, URL: n.DirectURL(), Credential: l.Token("nobody"), Namespace: e2e.StreamNamespace, Pod: pod}
			report(t, nobody.Refused(t.Context())...)
			report(t, nobody.WebsocketWatchRefused(t.Context(), collection, 403))
			t.Run(fmt.Sprintf("%s/%s/kubectl", n.Name, pod), func(t *testing.T) {
				s := e2e.Streams{Lab: l, URL: n.DirectURL(), Credential: l.Token("alice"), Namespace: e2e.StreamNamespace, Pod: pod}
				report(t, s.Kubectl(t.Context(), n.Server.Version)...)
			})
		}
		s := e2e.Streams{Lab: l, URL: n.DirectURL(), Credential: l.Token("alice"), Namespace: e2e.StreamNamespace, Pod: e2e.TranslatedPod}
		for _, protocol := range []lab.Protocol{lab.HTTP1, lab.HTTP2} {
			report(t, s.Bulk(t.Context(), protocol), s.Logs(t.Context(), protocol, 3*time.Second))
		}
		report(t, s.Idle(t.Context(), 5*time.Second, object))
	}
	for request, n := range stub.Requests() {
		t.Logf("the stand-in kubelet got %d × %s %s", n, request.Verb, request.Upgrade)
	}
	for _, upgrade := range []string{"websocket", "spdy/3.1"} {
		if stub.Requests()[streamer.Request{Verb: "exec", Upgrade: upgrade}] == 0 {
			t.Errorf("no exec reached the stand-in kubelet over %s", upgrade)
		}
	}
}

func report(t *testing.T, results ...e2e.StreamResult) {
	t.Helper()
	for _, r := range results {
		t.Logf("%s: %d requests", r.Name, r.Requests)
		if r.Err != nil {
			t.Errorf("%s: %v", r.Name, r.Err)
		}
	}
}
