package documents

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"testing"

	apidiscoveryv2 "k8s.io/api/apidiscovery/v2"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"xds-server/pkg/discovery"
	"xds-server/pkg/peers"
)

// schemaServer is a server as far as OpenAPI is concerned.
type schemaServer struct {
	// serves are resources, such as "apps/v1/deployments", and subresources.
	serves string
	// v3 are the documents by path; those of paths in unread have not been read yet, only their hashes.
	v3     map[string]string
	unread string
	v2     string
	away   bool
}

func (s schemaServer) observation(name string) discovery.Observation {
	o := discovery.Observation{
		Server: peers.Server{Name: name}, Ready: !s.away, View: viewOf(strings.Fields(s.serves)...),
		Documents: &discovery.Documents{OpenAPIV3: map[string]discovery.Schema{}},
		ETags:     map[string]string{"/openapi/v2": `"two"`},
	}
	for path, body := range s.v3 {
		schema := discovery.Schema{Hash: newContent("", []byte(body)).hash}
		if !slices.Contains(strings.Fields(s.unread), path) {
			schema.JSON = []byte(body)
		}
		o.Documents.OpenAPIV3[path] = schema
	}
	if s.v2 != "" {
		o.Documents.OpenAPIV2 = &discovery.OpenAPIV2{Hash: newContent("", []byte(s.v2)).hash, JSON: []byte(s.v2)}
	}
	return o
}

// viewOf is a view with these resources ("g/v/r") and subresources ("g/v/r/s").
func viewOf(resources ...string) *discovery.View {
	v := &discovery.View{}
	for _, name := range slices.Sorted(slices.Values(resources)) {
		part := strings.Split(name, "/")
		if len(v.Groups) == 0 || v.Groups[len(v.Groups)-1].Name != part[0] {
			v.Groups = append(v.Groups, apidiscoveryv2.APIGroupDiscovery{ObjectMeta: metav1.ObjectMeta{Name: part[0]}})
		}
		g := &v.Groups[len(v.Groups)-1]
		if len(g.Versions) == 0 || g.Versions[len(g.Versions)-1].Version != part[1] {
			g.Versions = append(g.Versions, apidiscoveryv2.APIVersionDiscovery{Version: part[1], Freshness: apidiscoveryv2.DiscoveryFreshnessCurrent})
		}
		version := &g.Versions[len(g.Versions)-1]
		if len(part) == 3 {
			version.Resources = append(version.Resources, apidiscoveryv2.APIResourceDiscovery{Resource: part[2], Scope: apidiscoveryv2.ScopeCluster, Verbs: metav1.Verbs{"get"}})
			continue
		}
		r := &version.Resources[len(version.Resources)-1]
		r.Subresources = append(r.Subresources, apidiscoveryv2.APISubresourceDiscovery{Subresource: part[3], Verbs: metav1.Verbs{"get"}})
	}
	return v
}

func openAPIOf(servers ...schemaServer) *openAPI {
	var all []discovery.Observation
	for i, s := range servers {
		all = append(all, s.observation(fmt.Sprint("server-", i)))
	}
	return openAPIOfObservations(all)
}

func openAPIOfObservations(all []discovery.Observation) *openAPI {
	var views []*discovery.View
	for _, o := range all {
		views = append(views, o.View)
	}
	return newOpenAPI(all, discovery.Merge(views...), true)
}

// fetched asks a document that is Merged.
func fetched(t interface{ Fatalf(string, ...any) }, o *openAPI, target string, header ...string) *httptest.ResponseRecorder {
	at, err := url.Parse(target)
	if err != nil {
		t.Fatalf("%s", err)
	}
	h, verdict := o.find(at.Path)
	if verdict != Merged {
		t.Fatalf("%s is %s: %v", at.Path, verdict, o.problems())
	}
	req := httptest.NewRequest(http.MethodGet, target, nil)
	for i := 0; i < len(header); i += 2 {
		req.Header.Add(header[i], header[i+1])
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, req)
	return w
}

// indexed is the URL that the index gives for each path.
func indexed(t interface{ Fatalf(string, ...any) }, o *openAPI) map[string]string {
	var index struct {
		Paths map[string]struct {
			URL string `json:"serverRelativeURL"`
		}
	}
	if err := json.Unmarshal(fetched(t, o, "/openapi/v3").Body.Bytes(), &index); err != nil {
		t.Fatalf("%s", err)
	}
	out := map[string]string{}
	for path, at := range index.Paths {
		out[path] = at.URL
	}
	return out
}

// schemaOf is a document of OpenAPI v3 with these paths and schemas.
func schemaOf(paths []string, schemas map[string]string) string {
	top := object{"openapi": []byte(`"3.0.0"`), "info": []byte(`{"title":"t","version":"1"}`)}
	p, s := object{}, object{}
	for _, path := range paths {
		p[path] = []byte(`{"get":{"responses":{"200":{"description":"OK"}}}}`)
	}
	for name, schema := range schemas {
		s[name] = []byte(schema)
	}
	top["paths"], top["components"] = p.encode(), object{"schemas": s.encode()}.encode()
	return string(top.encode())
}

func pathsOf(t interface{ Fatalf(string, ...any) }, body []byte) []string {
	top, err := parseObject(body)
	if err != nil {
		t.Fatalf("%s: %.200s", err, body)
	}
	paths, err := top.child("paths")
	if err != nil {
		t.Fatalf("%s", err)
	}
	return slices.Sorted(maps.Keys(paths))
}

func TestASchemaComesFromAServerThatHasAllResources(t *testing.T) {
	const gv = "apis/g.io/v1"
	doc := func(extra string, resources ...string) string {
		var paths []string
		for _, r := range resources {
			paths = append(paths, "/apis/g.io/v1/"+r)
		}
		return schemaOf(paths, map[string]string{"G": `{"type":"object","description":"` + extra + `"}`})
	}
	one := func(serves, body string) schemaServer {
		return schemaServer{serves: serves, v3: map[string]string{gv: body}}
	}
	for _, c := range []struct {
		name    string
		servers []schemaServer
		verdict Verdict
		want    string // the document that is served
		paths   string // or the paths of the one that is made
	}{
		{"all servers have the same", []schemaServer{one("g.io/v1/a", doc("", "a")), one("g.io/v1/a", doc("", "a"))}, Same, "", ""},
		{"one server has more resources", []schemaServer{one("g.io/v1/a", doc("with a long text", "a")), one("g.io/v1/a g.io/v1/b", doc("", "a", "b"))}, Merged, doc("", "a", "b"), ""},
		{"one server has a subresource more", []schemaServer{one("g.io/v1/a", doc("with a long text", "a", "x")), one("g.io/v1/a g.io/v1/a/status", doc("", "a", "a/status"))}, Merged, doc("", "a", "a/status"), ""},
		{"resources are equal, one describes more", []schemaServer{one("g.io/v1/a", doc("more", "a")), one("g.io/v1/a", doc("", "a"))}, Merged, doc("more", "a"), ""},
		{"each has something that the other lacks", []schemaServer{one("g.io/v1/a", doc("", "a")), one("g.io/v1/b", doc("", "b"))}, Merged, "", "/apis/g.io/v1/a /apis/g.io/v1/b"},
		{"only one server has the version", []schemaServer{one("g.io/v1/a", doc("", "a")), {v3: map[string]string{}}}, Merged, doc("", "a"), ""},
		{"the server that has it is away", []schemaServer{{v3: map[string]string{}}, {serves: "g.io/v1/a", v3: map[string]string{gv: doc("", "a")}, away: true}}, Merged, doc("", "a"), ""},
		{"the body that is needed is not read yet", []schemaServer{one("g.io/v1/a", doc("", "a")), {serves: "g.io/v1/a g.io/v1/b", v3: map[string]string{gv: doc("", "a", "b")}, unread: gv}}, Unread, "", ""},
		{"the body that is not read is not needed", []schemaServer{{serves: "g.io/v1/a", v3: map[string]string{gv: doc("", "a")}, unread: gv}, one("g.io/v1/a g.io/v1/b", doc("", "a", "b"))}, Merged, doc("", "a", "b"), ""},
		{"a body will never be read, since its server is away", []schemaServer{one("g.io/v1/a", doc("", "a")), {serves: "g.io/v1/a", v3: map[string]string{gv: doc("more", "a")}, unread: gv, away: true}}, Merged, doc("", "a"), ""},
		{"one document is none", []schemaServer{one("g.io/v1/a", doc("", "a")), one("g.io/v1/a", `{"paths":["a","b"]}`)}, Merged, doc("", "a"), ""},
		{"no document is one", []schemaServer{one("g.io/v1/a", `[]`), one("g.io/v1/a", `{"paths":1}`)}, Unread, "", ""},
		{"no view has the version any more", []schemaServer{{v3: map[string]string{gv: doc("", "a")}}, {v3: map[string]string{}}}, Absent, "", ""},
		{"all servers have it, though no view does", []schemaServer{one("", doc("", "a")), one("", doc("", "a"))}, Same, "", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			for range 2 {
				slices.Reverse(c.servers)
				o := openAPIOf(c.servers...)
				if _, v := o.find("/openapi/v3/" + gv); v != c.verdict {
					t.Fatalf("it is %s instead of %s: %v", v, c.verdict, o.problems())
				}
				if c.verdict != Merged {
					continue
				}
				body := fetched(t, o, "/openapi/v3/"+gv).Body.Bytes()
				if c.want != "" && string(body) != c.want {
					t.Errorf("got  %s\nwant %s", body, c.want)
				}
				if got := strings.Join(pathsOf(t, body), " "); c.paths != "" && got != c.paths {
					t.Errorf("the paths are %s", got)
				}
			}
		})
	}
}

func TestWhatNoViewHasIsNotGoneWhileAServerIsUnread(t *testing.T) {
	all := []discovery.Observation{
		schemaServer{v3: map[string]string{"apis/g.io/v1": "{}", "apis/g.io": "{}"}}.observation("a"),
		schemaServer{}.observation("b"),
	}
	for _, path := range []string{"/openapi/v3/apis/g.io/v1", "/openapi/v3/apis/g.io"} {
		for complete, want := range map[bool]Verdict{true: Absent, false: Merged} {
			if _, got := newOpenAPI(all, &discovery.View{}, complete).find(path); got != want {
				t.Errorf("%s is %s, complete: %v", path, got, complete)
			}
		}
	}
}

func TestWhatIsLeftOutIsKnown(t *testing.T) {
	o := openAPIOf(
		schemaServer{serves: "g.io/v1/a", v3: map[string]string{"apis/g.io/v1": schemaOf([]string{"/a"}, nil)}},
		schemaServer{serves: "g.io/v1/a", v3: map[string]string{"apis/g.io/v1": `{"paths":[]}`}})
	indexed(t, o)
	if p := o.problems(); len(p) != 1 || !strings.Contains(p[0].Error(), "apis/g.io/v1") {
		t.Errorf("%v", p)
	}
}

func TestDocumentsDifferWhereAServerHasAnother(t *testing.T) {
	a := schemaServer{v3: map[string]string{"version": "{}"}, v2: "{}"}
	b := schemaServer{v3: map[string]string{"version": `{"info":{}}`}, v2: "{}"}
	c := schemaServer{v3: map[string]string{"version": "{}"}, v2: `{"info":{}}`}
	d := schemaServer{v3: map[string]string{"version": "{}"}}
	for _, x := range []struct {
		name    string
		servers []schemaServer
		want    bool
	}{
		{"nothing is known", nil, false},
		{"one server", []schemaServer{a}, false},
		{"equal servers", []schemaServer{a, a}, false},
		{"another schema", []schemaServer{a, b}, true},
		{"another OpenAPI v2", []schemaServer{a, c}, true},
		{"OpenAPI v2 is not read", []schemaServer{a, d}, false},
	} {
		if got := openAPIOf(x.servers...).differ(); got != x.want {
			t.Errorf("%s: %v", x.name, got)
		}
	}
}

func TestASchemaIsServedAsAServerServesIt(t *testing.T) {
	o := openAPIOf(
		schemaServer{serves: "g.io/v1/a", v3: map[string]string{"apis/g.io/v1": schemaOf([]string{"/a"}, nil)}},
		schemaServer{})
	at := indexed(t, o)["apis/g.io/v1"]
	_, hash, _ := strings.Cut(at, "?hash=")
	const plain = "/openapi/v3/apis/g.io/v1"
	const protobuf = "application/com.github.proto-openapi.spec.v3@v1.0+protobuf"
	for _, c := range []struct {
		name, target string
		header       []string
		status       int
		want         map[string]string
	}{
		{"by its name", plain, nil, 200, map[string]string{"Content-Type": "application/json", "Etag": `"` + hash + `"`, "Cache-Control": "no-cache, private", "Vary": "Accept", "Expires": ""}},
		{"by its URL in the index", at, nil, 200, map[string]string{"Etag": `"` + hash + `"`, "Cache-Control": "public, immutable"}},
		{"by an old URL", plain + "?hash=OLD", nil, 301, map[string]string{"Location": at, "Cache-Control": "no-cache, private"}},
		{"in protobuf", at, []string{"Accept", protobuf}, 200, map[string]string{"Content-Type": "application/com.github.proto-openapi.spec.v3.v1.0+protobuf"}},
		{"in protobuf, or else in JSON", at, []string{"Accept", "application/json;q=0.1, " + protobuf}, 200, map[string]string{"Content-Type": "application/com.github.proto-openapi.spec.v3.v1.0+protobuf"}},
		{"in whatever there is", at, []string{"Accept", "text/html, */*;q=0.1"}, 200, map[string]string{"Content-Type": "application/json"}},
		{"as HTML", at, []string{"Accept", "text/html"}, 406, map[string]string{"Content-Type": "application/json"}},
		{"if it is new", at, []string{"If-None-Match", `"a", W/"` + hash + `"`}, 304, map[string]string{"Etag": `"` + hash + `"`}},
		{"if there is none", at, []string{"If-None-Match", "*"}, 304, nil},
		{"if it isn't another", at, []string{"If-None-Match", `"another"`}, 200, nil},
	} {
		w := fetched(t, o, c.target, c.header...)
		if w.Code != c.status {
			t.Errorf("%s: %d", c.name, w.Code)
		}
		for name, want := range c.want {
			if got := w.Header().Get(name); got != want {
				t.Errorf("%s: %s is %q instead of %q", c.name, name, got, want)
			}
		}
		if c.status == 406 && !strings.Contains(w.Body.String(), `"kind": "Status"`) {
			t.Errorf("%s: %s", c.name, w.Body)
		}
	}
	if got := o.etag("server-0", plain); got != `"`+hash+`"` {
		t.Errorf("the server's own ETag is %s", got)
	}
	if got := o.etag("server-1", plain) + o.etag("nobody", plain) + o.etag("nobody", "/openapi/v2"); got != "" {
		t.Errorf("servers that lack it have the ETag %s", got)
	}
	if got := o.etag("server-0", "/openapi/v2"); got != `"two"` {
		t.Errorf("the ETag of OpenAPI v2 is %s", got)
	}
	for _, path := range []string{"/openapi/v3/", "/openapi/v3/apis/g.io/v1/", "/openapi/v3/apis", "/openapi", "/openapi/v2/", "/openapi/v4"} {
		if _, v := o.find(path); v != Absent {
			t.Errorf("%s is %s", path, v)
		}
	}
}

func TestOpenAPISaysThatItIsPartialWhileAServersDocumentsWereNotRead(t *testing.T) {
	doc := func(name string) map[string]string {
		return map[string]string{"apis/a.io/v1": schemaOf([]string{"/apis/a.io/v1/" + name}, nil)}
	}
	one := schemaServer{serves: "a.io/v1/r", v3: doc("one")}.observation("one")
	two := schemaServer{serves: "a.io/v1/r", v3: doc("two")}.observation("two")
	unread := schemaServer{serves: "a.io/v1/r"}.observation("three")
	unread.Documents = nil
	away, expired := unread, unread
	away.Ready = false
	expired.View, expired.Expired = nil, true
	never := away
	never.View = nil
	for _, c := range []struct {
		third  discovery.Observation
		header string
	}{{unread, "partial"}, {away, "partial"}, {never, "partial"}, {expired, "merged"}} {
		complete, lists := c.third.View != nil || c.third.Expired, "merged"
		if !complete {
			lists = "partial"
		}
		set := Compile([]discovery.Observation{one, two, c.third}, complete)
		for path, want := range map[string]string{"/openapi/v3": c.header, "/openapi/v3/apis/a.io/v1": c.header, "/apis": lists} {
			h, verdict := set.Find(path)
			if verdict != Merged {
				t.Fatalf("%s is %s", path, verdict)
			}
			w := httptest.NewRecorder()
			h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, path, nil))
			if got := w.Header().Get(Header); got != want {
				t.Errorf("%s is told to be %q, want %q", path, got, want)
			}
		}
		// A document that all others have alike is not known to be the unread one's too, and none is known not to be there.
		same := Compile([]discovery.Observation{one, one, c.third}, complete)
		for path, known := range map[string]Verdict{"/openapi/v3": Same, "/openapi/v3/apis/a.io/v1": Same, "/openapi/v3/apis/b.io/v1": Absent} {
			want := known
			if c.header == "partial" {
				want = Unread
			}
			if _, got := same.Find(path); got != want {
				t.Errorf("%s is %s, want %s", path, got, want)
			}
		}
	}
}
