package envoy_test

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/runtime/serializer/cbor"

	"xds-server/envoy/lua"
	"xds-server/envoy/luatest"
)

const (
	unknownAPI = "the server could not find the requested resource"
	notKnown   = "it is not known yet whether another API server serves this resource"
	notServed  = "the API server that was to serve this resource does not serve it"
)

// status encodes a Status 404 as an apiserver does.
func status(t *testing.T, mediaType, message string, details *metav1.StatusDetails, pretty bool) []byte {
	t.Helper()
	s := runtime.NewScheme()
	metav1.AddToGroupVersion(s, schema.GroupVersion{Version: "v1"})
	codecs := serializer.NewCodecFactory(s, serializer.WithSerializer(cbor.NewSerializerInfo))
	info, ok := runtime.SerializerInfoForMediaType(codecs.SupportedMediaTypes(), mediaType)
	if !ok {
		t.Fatalf("no serializer for %s", mediaType)
	}
	encoder := info.Serializer
	if pretty {
		encoder = info.PrettySerializer
	}
	var b bytes.Buffer
	if err := encoder.Encode(&metav1.Status{
		TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: "Failure", Message: message,
		Reason: metav1.StatusReasonNotFound, Code: http.StatusNotFound, Details: details,
	}, &b); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// answers serves what the test says for the path of the moment.
type answers struct {
	code        int
	contentType string
	body        []byte
	header      http.Header
}

func (a *answers) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	for k, v := range a.header {
		w.Header()[k] = v
	}
	w.Header()["Content-Type"] = nil
	if a.contentType != "" {
		w.Header().Set("Content-Type", a.contentType)
	}
	w.Header().Set("Audit-Id", "x")
	w.WriteHeader(a.code)
	_, _ = w.Write(a.body)
}

type guardCase struct {
	what   string
	method string
	path   string
	answers
	turned bool
}

func (g guardCase) run(t *testing.T, client *http.Client, upstream *answers, message string) {
	t.Run(g.what, func(t *testing.T) {
		*upstream = g.answers
		if upstream.code == 0 {
			upstream.code = http.StatusNotFound
		}
		method := g.method
		if method == "" {
			method = http.MethodGet
		}
		req, err := http.NewRequestWithContext(t.Context(), method, "http://front", nil)
		if err != nil {
			t.Fatal(err)
		}
		req.URL.Opaque = g.path
		res, err := client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(res.Body)
		if err != nil {
			t.Fatal(err)
		}
		_ = res.Body.Close()
		if !g.turned {
			if res.StatusCode != upstream.code || method != http.MethodHead && !bytes.Equal(body, g.body) || res.Header.Get("Content-Type") != g.contentType {
				t.Errorf("the answer did not pass untouched: %s %v %q", res.Status, res.Header, body)
			}
			return
		}
		want := fmt.Sprintf(`{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","message":%q,"reason":"ServiceUnavailable","details":{"retryAfterSeconds":1},"code":503}`+"\n", message)
		if method == http.MethodHead {
			want = ""
		}
		if res.StatusCode != http.StatusServiceUnavailable || string(body) != want || res.Header.Get("Retry-After") != "1" ||
			res.Header.Get("Content-Type") != "application/json" || res.Header.Get("Audit-Id") != "x" {
			t.Errorf("%s %v %q, want 503 %s", res.Status, res.Header, body, want)
		}
	})
}

func guardCases(t *testing.T) []guardCase {
	plain := answers{contentType: "text/plain; charset=utf-8", body: []byte("404 page not found\n")}
	nothing := &metav1.StatusDetails{}
	unknown := func(mediaType string, pretty bool) answers {
		return answers{contentType: mediaType, body: status(t, mediaType, unknownAPI, nothing, pretty)}
	}
	const path = "/apis/storagemigration.k8s.io/v1/storageversionmigrations"
	return []guardCase{
		{what: "an unknown group", path: path, answers: plain, turned: true},
		{what: "an unknown group's document", path: "/apis/storagemigration.k8s.io", answers: plain, turned: true},
		{what: "an unknown version's document", path: "/apis/apps/v9/", answers: unknown("application/json", false), turned: true},
		{what: "an unknown resource in JSON", path: path + "/x?a=b", answers: unknown("application/json", false), turned: true},
		{what: "in pretty JSON", path: path, answers: unknown("application/json", true), turned: true},
		{what: "in YAML", path: path, answers: unknown("application/yaml", false), turned: true},
		{what: "in protobuf", path: path, answers: unknown("application/vnd.kubernetes.protobuf", false), turned: true},
		{what: "in CBOR", path: path, answers: unknown("application/cbor", false), turned: true},
		{what: "of the core group", path: "/api/v1/nopes", answers: unknown("application/json", false), turned: true},
		{what: "a write", method: http.MethodPost, path: path, answers: unknown("application/json", false), turned: true},
		{what: "a subresource", method: http.MethodPatch, path: "/apis/storage.k8s.io/v1/csinodes/x/status", answers: unknown("application/json", false), turned: true},
		{what: "HEAD", method: http.MethodHead, path: path, answers: unknown("application/json", false), turned: true},
		{what: "HEAD in indented JSON", method: http.MethodHead, path: path, answers: unknown("application/json", true), turned: true},
		{what: "HEAD of an unknown group", method: http.MethodHead, path: path, answers: plain, turned: true},
		{what: "a path that the classifier leaves unnamed", path: "/apis/apps/v1/Deployments", answers: unknown("application/json", false), turned: true},
		{what: "an OpenAPI document", path: "/openapi/v3/apis/storagemigration.k8s.io/v1", answers: answers{}, turned: true},

		{what: "a missing object", path: path + "/x", answers: answers{contentType: "application/json",
			body: status(t, "application/json", `storageversionmigrations.storagemigration.k8s.io "x" not found`, &metav1.StatusDetails{Name: "x"}, false)}},
		{what: "a missing object in protobuf", path: path + "/x", answers: answers{contentType: "application/vnd.kubernetes.protobuf",
			body: status(t, "application/vnd.kubernetes.protobuf", `x not found`, &metav1.StatusDetails{Name: "x", Kind: "y"}, false)}},
		{what: "that message with details", path: path + "/x", answers: answers{contentType: "application/json", body: status(t, "application/json", unknownAPI, &metav1.StatusDetails{Name: "x"}, false)}},
		{what: "that message and more of it", path: path + "/x", answers: answers{contentType: "application/json", body: status(t, "application/json", unknownAPI+" (get x)", nothing, false)}},
		{what: "a proxied path", path: "/api/v1/namespaces/a/pods/b/proxy/x", answers: plain},
		{what: "a proxied path with escapes", path: "/api/v1/namespaces/a/services/https:b:/pro%78y/x//y", answers: unknown("application/json", false)},
		{what: "a proxied path that is unnamed", path: "/api/V1/nodes/x/proxy/y", answers: plain},
		{what: "no API path", path: "/metricz", answers: plain},
		{what: "other text", path: path, answers: answers{contentType: "text/plain", body: []byte("404 page not found, sorry\n")}},
		{what: "other text of that length", path: path, answers: answers{contentType: "text/plain", body: []byte("404 page not fount\n")}},
		{what: "HTML", path: path, answers: answers{contentType: "text/html", body: plain.body}},
		{what: "a body of unknown length", path: path, answers: answers{contentType: "text/plain", body: bytes.Repeat([]byte("404 page not found\n"), 10000)}},
		{what: "another code", path: path, answers: answers{code: http.StatusForbidden, contentType: "text/plain", body: plain.body}},
		{what: "a good answer", path: path, answers: answers{code: http.StatusOK, contentType: "text/plain", body: plain.body}},
	}
}

func TestOnTheFallbackChainAnUnknownAPIIsNotKnownYet(t *testing.T) {
	upstream := new(answers)
	e := luatest.Start(t, luatest.Config{Script: lua.Fallback(lua.Config{CAFile: "/nonexistent"}), Upstream: upstream})
	client := e.Client()
	t.Cleanup(client.CloseIdleConnections)
	for _, g := range guardCases(t) {
		g.run(t, client, upstream, notKnown)
	}
	t.Run("without the guard", func(t *testing.T) {
		e := luatest.Start(t, luatest.Config{Script: lua.Front(lua.Config{CAFile: "/nonexistent"}), Upstream: upstream})
		client := e.Client()
		t.Cleanup(client.CloseIdleConnections)
		g := guardCases(t)[0]
		g.turned = false
		g.run(t, client, upstream, "")
	})
	if log := e.Log(); strings.Contains(log, "script log") {
		t.Errorf("the script failed:\n%.2000s", log)
	}
}

func TestAPeerThatDoesNotServeWhatItWasToServeIsUnavailable(t *testing.T) {
	upstream := new(answers)
	// The guard is the only script here; x-id-state is for the route table of this test.
	script := lua.PeerGuard() + "local watch = envoy_on_request function envoy_on_request(h) watch(h) h:headers():replace('x-id-state', 'plain') end"
	e := luatest.Start(t, luatest.Config{Script: script, Upstream: upstream})
	client := e.Client()
	t.Cleanup(client.CloseIdleConnections)
	for _, g := range guardCases(t) {
		local := g
		local.what, local.turned = g.what+" from the local server", false
		local.run(t, client, upstream, "")
		g.header = http.Header{"X-Kubernetes-Peer-Proxied": {"true"}}
		g.run(t, client, upstream, notServed)
	}
}
