package extproc

import (
	"context"
	"net/http"
	"strings"
	"testing"
	"time"

	apidiscoveryv2 "k8s.io/api/apidiscovery/v2"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"xds-server/pkg/discovery"
	"xds-server/pkg/documents"
	"xds-server/pkg/peers"
)

const aggregated = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"

// fakeSource knows one set of documents, and another one once a server was read again.
type fakeSource struct {
	now, later *documents.Set
	refreshed  []string
	// lost is why some server can't be read.
	lost error
}

func (f *fakeSource) Documents() *documents.Set { return f.now }

func (f *fakeSource) RefreshAll(ctx context.Context, age time.Duration) error {
	_ = f.Refresh(ctx, "all", age)
	return f.lost
}

func (f *fakeSource) Refresh(_ context.Context, server string, _ time.Duration) error {
	f.refreshed = append(f.refreshed, server)
	if f.later != nil {
		f.now = f.later
	}
	return nil
}

// serves is a server with groups of its own beside the core group.
func serves(name, etag string, groups ...string) discovery.Observation {
	version := []apidiscoveryv2.APIVersionDiscovery{{
		Version: "v1", Freshness: apidiscoveryv2.DiscoveryFreshnessCurrent,
		Resources: []apidiscoveryv2.APIResourceDiscovery{{
			Resource: "things", SingularResource: "thing", Scope: apidiscoveryv2.ScopeNamespace, Verbs: []string{"get"},
			ResponseKind: &metav1.GroupVersionKind{Version: "v1", Kind: "Thing"},
		}},
	}}
	v := &discovery.View{Groups: []apidiscoveryv2.APIGroupDiscovery{{Versions: version}}}
	for _, g := range groups {
		v.Groups = append(v.Groups, apidiscoveryv2.APIGroupDiscovery{ObjectMeta: metav1.ObjectMeta{Name: g}, Versions: version})
	}
	return discovery.Observation{
		Server: peers.Server{Name: name}, Ready: true, View: v, ETags: map[string]string{"/apis": etag, "/api": `"core"`},
	}
}

func upgrade() *documents.Set {
	return documents.Compile([]discovery.Observation{serves("old", `"o"`, "apps"), serves("new", `"n"`, "apps", "storage")}, true)
}

func TestTheLocalServersStatusDecidesWhoGetsWhichDocument(t *testing.T) {
	partial := documents.Compile([]discovery.Observation{serves("old", `"o"`, "apps"), {Server: peers.Server{Name: "new"}}}, false)
	for name, tt := range map[string]struct {
		set          *documents.Set
		method, path string
		accept       string
		ifNoneMatch  string
		local        string
		want         string
		status       int
		inBody       string
	}{
		"unchanged and allowed: the merged document":     {path: "/apis", accept: aggregated, local: "304", want: resultMerged, status: 200, inBody: `"storage"`},
		"a client that has it already":                   {path: "/apis", accept: aggregated, ifNoneMatch: "*", local: "304", want: resultNotModified, status: 304},
		"legacy group list":                              {path: "/apis", accept: "application/json", local: "200", want: resultMerged, status: 200, inBody: `"storage"`},
		"a version that only a peer serves":              {path: "/apis/storage/v1", local: "404", want: resultMerged, status: 200, inBody: `"things"`},
		"a group that only a peer serves":                {path: "/apis/storage", local: "404", want: resultMerged, status: 200, inBody: `"storage"`},
		"escaped, as a server reads it":                  {path: "/ap%69s/storage", local: "404", want: resultMerged, status: 200, inBody: `"storage"`},
		"a group that nobody serves":                     {path: "/apis/nobody", local: "404", want: resultAbsent},
		"not authenticated":                              {path: "/apis", accept: aggregated, local: "401", want: resultRefused},
		"not allowed":                                    {path: "/apis/storage/v1", local: "403", want: resultRefused},
		"the local server is starting":                   {path: "/apis", accept: aggregated, local: "503", want: resultRefused},
		"too many requests":                              {path: "/apis", accept: aggregated, local: "429", want: resultRefused},
		"moved":                                          {path: "/apis", accept: aggregated, local: "301", want: resultRefused},
		"the local server's own":                         {path: "/apis", accept: aggregated + ";profile=nopeer", local: "200", want: resultLocal},
		"another profile is merged":                      {path: "/apis", accept: aggregated + ";profile=x", local: "304", want: resultMerged, status: 200, inBody: `"storage"`},
		"nobody has it in this form":                     {path: "/apis", accept: "image/png", local: "200", want: resultMerged, status: 406},
		"HEAD":                                           {method: "HEAD", path: "/apis", accept: aggregated, local: "304", want: resultMerged, status: 200},
		"a path that is none":                            {path: "*", local: "400", want: resultRefused},
		"while a server was never read, and says so":     {set: partial, path: "/apis", accept: aggregated, local: "304", want: resultPartial, status: 200, inBody: `"apps"`},
		"a document that is not of a group or a version": {path: "/apis/storage/v1/things", local: "404", want: resultAbsent},
	} {
		t.Run(name, func(t *testing.T) {
			if tt.set == nil {
				tt.set = upgrade()
			}
			if tt.method == "" {
				tt.method = "GET"
			}
			e := exchange{source: &fakeSource{now: tt.set}, node: "old"}
			e.request(http.Header{":method": {tt.method}, ":path": {tt.path}, "Accept": {tt.accept}, "If-None-Match": {tt.ifNoneMatch}})
			a := e.response(t.Context(), http.Header{":status": {tt.local}, "Etag": {`"o"`}})
			if a.result != tt.want || a.status != tt.status || !strings.Contains(string(a.body), tt.inBody) {
				t.Errorf("%s, status %d, %.300q; want %s, status %d, with %q in", a.result, a.status, a.body, tt.want, tt.status, tt.inBody)
			}
			if tt.method == "HEAD" && len(a.body) > 0 {
				t.Errorf("HEAD has a body: %q", a.body)
			}
		})
	}
}

func TestTheLocalServerIsAskedForItsOwnDocumentByTheETagThatIsKnown(t *testing.T) {
	e := exchange{source: &fakeSource{now: upgrade()}, node: "old"}
	got := e.request(http.Header{":method": {"GET"}, ":path": {"/apis?timeout=32s"}, "Accept": {aggregated}, "If-None-Match": {`"mine"`}})
	if got.set.Get("If-None-Match") != `"o"` || !strings.Contains(got.set.Get("Accept"), "profile=nopeer") {
		t.Errorf("it is asked with %v", got.set)
	}
	e = exchange{source: &fakeSource{now: upgrade()}, node: "unknown"}
	if got := e.request(http.Header{":method": {"GET"}, ":path": {"/apis"}, "Accept": {aggregated}}); got.set.Get("If-None-Match") != "" {
		t.Errorf("a server whose ETag is not known is asked with %v", got.set)
	}
	if got := e.request(http.Header{":method": {"GET"}, ":path": {"/apis/nobody"}, "Accept": {"application/yaml"}}); len(got.set)+len(got.remove) > 0 {
		t.Errorf("a request that is not answered here is changed: %v", got)
	}
}

func TestALocalServerThatSaysSomethingNewIsReadAgainFirst(t *testing.T) {
	later := documents.Compile([]discovery.Observation{serves("old", `"o2"`, "apps", "fresh"), serves("new", `"n"`, "apps", "storage")}, true)
	for name, tt := range map[string]struct {
		path, local, etag, proxied string
		read                       bool
		inBody                     string
	}{
		"unchanged":                        {path: "/apis", local: "304", read: false, inBody: "storage"},
		"another ETag":                     {path: "/apis", local: "200", etag: `"o2"`, read: true, inBody: "fresh"},
		"no ETag to tell":                  {path: "/apis/apps/v1", local: "200", read: true, inBody: "things"},
		"a group that is not known yet":    {path: "/apis/fresh", local: "200", read: true, inBody: "fresh"},
		"a peer answered in its place":     {path: "/apis", local: "200", etag: `"n"`, proxied: "true", read: false, inBody: "storage"},
		"it lacks what a peer serves":      {path: "/apis/storage/v1", local: "404", read: false, inBody: "things"},
		"nobody has it, here or elsewhere": {path: "/apis/nobody", local: "404", read: false},
	} {
		t.Run(name, func(t *testing.T) {
			source := &fakeSource{now: upgrade(), later: later}
			e := exchange{source: source, node: "old"}
			accept := "application/json"
			if tt.path == "/apis" {
				accept = aggregated
			}
			e.request(http.Header{":method": {"GET"}, ":path": {tt.path}, "Accept": {accept}})
			a := e.response(t.Context(), http.Header{":status": {tt.local}, "Etag": {tt.etag}, "X-Kubernetes-Peer-Proxied": {tt.proxied}})
			if read := len(source.refreshed) > 0; read != tt.read {
				t.Errorf("read again: %v, want %v", read, tt.read)
			}
			if !strings.Contains(string(a.body), tt.inBody) {
				t.Errorf("%s: %.300q, want %q in", a.result, a.body, tt.inBody)
			}
		})
	}
}

// A group that the local server lists and no view has is one of a server that left, or too new for the views.
func TestAGroupThatTheLocalServerListsIsGoneOnlyIfEveryServerSaysSo(t *testing.T) {
	listing := func(groups ...string) *documents.Set {
		o := serves("old", `"o"`, groups...)
		o.Documents = &discovery.Documents{Listed: []schema.GroupVersion{{Group: "apps", Version: "v1"}, {Group: "late", Version: "v1"}}}
		return documents.Compile([]discovery.Observation{o, serves("new", `"n"`, "apps")}, true)
	}
	for name, tt := range map[string]struct {
		source fakeSource
		status int
	}{
		"every server was asked, and none has it": {fakeSource{now: listing("apps")}, 404},
		"a server has it by now":                  {fakeSource{now: listing("apps"), later: listing("apps", "late")}, 200},
		"a server can't be asked":                 {fakeSource{now: listing("apps"), lost: context.DeadlineExceeded}, 503},
	} {
		e := exchange{source: &tt.source, node: "old"}
		e.request(http.Header{":method": {"GET"}, ":path": {"/apis/late"}})
		if a := e.response(t.Context(), http.Header{":status": {"200"}, "X-Kubernetes-Peer-Proxied": {"true"}}); a.status != tt.status {
			t.Errorf("%s: %d %s", name, a.status, a.body)
		}
	}
}

func TestAnOpenAPIDocumentThatIsNotKnownWholeIsTheLocalServersAndPartial(t *testing.T) {
	unread := serves("new", `"n"`, "apps")
	e := exchange{source: &fakeSource{now: documents.Compile([]discovery.Observation{serves("old", `"o"`, "apps"), unread}, true)}, node: "old"}
	e.request(http.Header{":method": {"GET"}, ":path": {"/openapi/v2"}})
	if a := e.response(t.Context(), http.Header{":status": {"200"}}); a.status != 0 || a.header.Get(documents.Header) != "partial" {
		t.Errorf("%d %v", a.status, a.header)
	}
}

func TestADocumentThatExistsAndCannotBeGivenIsNot404(t *testing.T) {
	old := serves("old", `"o"`, "apps")
	old.Documents = &discovery.Documents{Listed: []schema.GroupVersion{{Group: "apps", Version: "v1"}, {Group: "late", Version: "v1"}}}
	set := documents.Compile([]discovery.Observation{old, {Server: peers.Server{Name: "new"}}}, false)
	e := exchange{source: &fakeSource{now: set}, node: "old"}
	e.request(http.Header{":method": {"GET"}, ":path": {"/apis/late/v1"}})
	if a := e.response(t.Context(), http.Header{":status": {"404"}}); a.status != 503 || a.header.Get("Retry-After") != "1" || !strings.Contains(string(a.body), `"kind":"Status"`) {
		t.Errorf("answered %d %v %s", a.status, a.header, a.body)
	}
}
