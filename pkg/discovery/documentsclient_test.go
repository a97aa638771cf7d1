package discovery

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// served is what a fake server has beside its view.
type served struct {
	schemas map[string]string // path → document
	hashes  map[string]string // "apps/v1/deployments" → storage version hash
	listed  []string          // "apps/v1"
	v2      string
}

func usual() served {
	return served{
		schemas: map[string]string{"api/v1": `{"core":1}`, "apis/apps/v1": `{"apps":1}`, ".well-known/openid-configuration": `{"oidc":1}`},
		hashes:  map[string]string{"/v1/pods": "xPOwRZ+Yhw8=", "/v1/pods/status": "", "apps/v1/deployments": "8aSe+NMegvE="},
		listed:  []string{"metrics.k8s.io/v1beta1", "apps/v1"},
		v2:      `{"swagger":"2.0"}`,
	}
}

// serveDocuments serves as kube-apiserver does: the index of OpenAPI v3 has no ETag and calls itself text.
func (s *apiserver) serveDocuments(d served) {
	paths := map[string]any{}
	for path, document := range d.schemas {
		h := hash([]byte(document))
		paths[path] = map[string]string{"serverRelativeURL": "/openapi/v3/" + path + "?hash=" + h}
		s.on("/openapi/v3/"+path, func(w http.ResponseWriter, r *http.Request) {
			if q := r.URL.Query().Get("hash"); q != "" && q != h {
				http.Redirect(w, r, r.URL.Path+"?hash="+h, http.StatusMovedPermanently)
				return
			}
			withETag("application/json", []byte(document))(w, r)
		})
	}
	s.on("/openapi/v3", typed("text/plain; charset=utf-8", marshal(map[string]any{"paths": paths})))
	s.on("/openapi/v2", withETag("application/json", []byte(d.v2)))
	s.on("/api", typed("application/json", []byte(`{"kind":"APIVersions","versions":["v1"],"serverAddressByClientCIDRs":[{"clientCIDR":"0.0.0.0/0","serverAddress":"10.0.0.1:6443"}]}`)))
	groups := metav1.APIGroupList{TypeMeta: metav1.TypeMeta{Kind: "APIGroupList"}}
	for _, l := range d.listed {
		group, version, _ := strings.Cut(l, "/")
		groups.Groups = append(groups.Groups, metav1.APIGroup{Name: group, Versions: []metav1.GroupVersionForDiscovery{{GroupVersion: l, Version: version}}})
	}
	s.on("/apis", typed("application/json", marshal(groups)))
	lists := map[string]*metav1.APIResourceList{}
	for _, key := range slices.Sorted(maps.Keys(d.hashes)) {
		p := strings.SplitN(key, "/", 3)
		path := legacyPath(schema.GroupVersion{Group: p[0], Version: p[1]})
		if lists[path] == nil {
			lists[path] = &metav1.APIResourceList{TypeMeta: metav1.TypeMeta{Kind: "APIResourceList"}}
		}
		lists[path].APIResources = append(lists[path].APIResources, metav1.APIResource{Name: p[2], StorageVersionHash: d.hashes[key]})
	}
	for path, list := range lists {
		s.on(path, typed("application/json", marshal(list)))
	}
}

func marshal(v any) []byte {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return b
}

func (s *apiserver) documents(t *testing.T) *documentsClient {
	c := newDocumentsClient(s.Listener.Addr().String(), 10*time.Second, s.credentials)
	t.Cleanup(c.disconnect)
	return c
}

// assign is the first assignment: a view and nothing else.
func assign(what ...string) assignment {
	return assignment{active: true, incarnation: 1, view: &View{Groups: groups(what...)}, budget: maxBodiesBytes}
}

// later makes the client take its last read for one of that long ago.
func (c *documentsClient) later(d time.Duration) {
	k := &c.known
	for _, t := range []*time.Time{&k.lacking, &k.settled, &k.nextLists, &k.nextV2, &k.nextStorage, &k.listsRest} {
		if !t.IsZero() {
			*t = t.Add(-d)
		}
	}
	for gv, s := range k.storage {
		s.read, s.rest = s.read.Add(-d), s.rest.Add(-d)
		if !s.due.IsZero() {
			s.due = s.due.Add(-d)
		}
		k.storage[gv] = s
	}
	for path, s := range c.skip {
		s.until = s.until.Add(-d)
		c.skip[path] = s
	}
}

func sortedPaths(list []*http.Request) string {
	words := strings.Fields(paths(list))
	slices.Sort(words)
	return strings.Join(words, " ")
}

func TestWhatAServersAggregatedDiscoveryDoesNotSayIsRead(t *testing.T) {
	s := newAPIServer(t)
	s.serveDocuments(usual())
	r := s.documents(t).read(t.Context(), assign("/v1/pods", "apps/v1/deployments"))
	if r.result != resultRead || r.err != nil || r.failed {
		t.Fatalf("got %+v", r)
	}
	d := r.documents
	if got := fmt.Sprint(d.Addresses); got != "[{0.0.0.0/0 10.0.0.1:6443}]" {
		t.Errorf("addresses: %s", got)
	}
	if got := fmt.Sprint(d.Listed); got != "[apps/v1 metrics.k8s.io/v1beta1]" {
		t.Errorf("listed: %s", got)
	}
	if got := fmt.Sprint(d.StorageVersionHashes); got != "map[v1:map[pods:xPOwRZ+Yhw8=] apps/v1:map[deployments:8aSe+NMegvE=]]" {
		t.Errorf("storage versions: %s", got)
	}
	for path, document := range usual().schemas {
		if got := d.OpenAPIV3[path]; got.Hash != hash([]byte(document)) || got.JSON != nil {
			t.Errorf("%s: %+v", path, got)
		}
	}
	if r.v2 == nil || string(r.v2.JSON) != usual().v2 || r.v2ETag != `"`+hash([]byte(usual().v2))+`"` || r.v2.Hash != hash(r.v2.JSON) {
		t.Errorf("OpenAPI v2: %+v %s", r.v2, r.v2ETag)
	}
	for _, q := range s.seen() {
		if strings.HasPrefix(q.URL.Path, "/openapi/v3/") {
			t.Errorf("%s was read, though nobody wants it", q.URL.Path)
		}
	}
}

func TestAServerThatDoesNotChangeIsAskedForNothingButItsIndex(t *testing.T) {
	s := newAPIServer(t)
	s.serveDocuments(usual())
	c := s.documents(t)
	a := assign("/v1/pods", "apps/v1/deployments")
	first := c.read(t.Context(), a)
	a.v2ETag = first.v2ETag
	c.later(settling)
	s.seen()
	for range 3 {
		r := c.read(t.Context(), a)
		if r.result != resultConfirmed || r.documents != first.documents || r.v2 != nil {
			t.Fatalf("got %+v", r)
		}
	}
	if got := paths(s.seen()); got != "/openapi/v3 /openapi/v3 /openapi/v3" {
		t.Errorf("requests: %s", got)
	}

	// What no cheap sign tells the changes of is read now and then, of OpenAPI v2 only whether it changed.
	c.later(round)
	s.on("/openapi/v2", func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("If-None-Match") != first.v2ETag {
			t.Errorf("If-None-Match: %s", r.Header.Get("If-None-Match"))
		}
		w.WriteHeader(http.StatusNotModified)
	})
	if r := c.read(t.Context(), a); r.result != resultConfirmed || r.documents != first.documents || r.v2 != nil {
		t.Errorf("got %+v", r)
	}
	if got := sortedPaths(s.seen()); got != "/api /api/v1 /apis /apis/apps/v1 /openapi/v2 /openapi/v3" {
		t.Errorf("requests: %s", got)
	}
}

func TestAServerWithManyVersionsIsNotAskedForAllAtOnceInEachRound(t *testing.T) {
	s := newAPIServer(t)
	d := usual()
	var view []string
	for i := range 60 {
		key := fmt.Sprintf("g%d.example.com/v1/things", i)
		view, d.hashes[key] = append(view, key), "8aSe+NMegvE="
	}
	s.serveDocuments(d)
	c, a := s.documents(t), assign(view...)
	c.read(t.Context(), a)
	seen := map[string]bool{}
	for range 6 {
		s.seen()
		c.later(round)
		c.read(t.Context(), a)
		n := 0
		for _, q := range s.seen() {
			if strings.Contains(q.URL.Path, "example.com") {
				n++
				seen[q.URL.Path] = true
			}
		}
		if n != 10 {
			t.Errorf("%d were read in one round", n)
		}
	}
	if len(seen) != 60 {
		t.Errorf("%d of 60 were read again in six rounds", len(seen))
	}
}

func TestAChangeIsFollowedWhereItIsSeen(t *testing.T) {
	s := newAPIServer(t)
	d := usual()
	s.serveDocuments(d)
	c, a := s.documents(t), assign("/v1/pods", "apps/v1/deployments")
	first := c.read(t.Context(), a)
	a.v2ETag = first.v2ETag
	c.later(settling)
	s.seen()

	// The view changed: the storage of that group, and what is listed.
	d.hashes["apps/v1/deployments"], d.listed = "bmV3", append(d.listed, "batch/v1")
	s.serveDocuments(d)
	a.view = &View{Groups: groups("/v1/pods", "apps/v1/deployments", "apps/v1/deployments/scale")}
	second := c.read(t.Context(), a)
	if second.result != resultRead || second.documents.StorageVersionHashes[schema.GroupVersion{Group: "apps", Version: "v1"}]["deployments"] != "bmV3" || len(second.documents.Listed) != 3 {
		t.Errorf("got %+v", second.documents)
	}
	if len(first.documents.Listed) != 2 {
		t.Error("the first documents, which others hold, were changed")
	}
	if got := sortedPaths(s.seen()); got != "/api /apis /apis/apps/v1 /openapi/v2 /openapi/v3 /readyz" {
		t.Errorf("requests: %s", got)
	}

	// The index changed: all of it is read anew, and the index twice, of a server that is ready before and after.
	c.later(settling)
	d.schemas["apis/apps/v1"], d.v2 = `{"apps":2}`, `{"swagger":"2.0","new":true}`
	s.serveDocuments(d)
	third := c.read(t.Context(), a)
	if third.result != resultRead || third.documents.OpenAPIV3["apis/apps/v1"].Hash != hash([]byte(`{"apps":2}`)) || third.v2 == nil {
		t.Errorf("got %+v", third)
	}
	if got := paths(s.seen()); !strings.HasPrefix(got, "/openapi/v3 /readyz /openapi/v3 /apis/apps/v1 ") || !strings.HasSuffix(got, " /readyz") {
		t.Errorf("requests: %s", got)
	}

	// A server writes its documents one after another: for a while they are asked for, though there is no other sign.
	a.v2ETag = third.v2ETag
	d.v2 = `{"swagger":"2.0","newer":true}`
	s.serveDocuments(d)
	if r := c.read(t.Context(), a); r.v2 == nil || string(r.v2.JSON) != d.v2 {
		t.Errorf("got %+v", r)
	}
}

func TestAfterARestartEverythingIsReadAgain(t *testing.T) {
	s := newAPIServer(t)
	d := usual()
	s.serveDocuments(d)
	c, a := s.documents(t), assign("/v1/pods", "apps/v1/deployments")
	first := c.read(t.Context(), a)
	c.later(settling)
	d.hashes["/v1/pods"] = "bmV3"
	s.serveDocuments(d)
	s.seen()
	a.incarnation, a.v2ETag = 2, first.v2ETag
	r := c.read(t.Context(), a)
	if r.result != resultRead || r.documents.StorageVersionHashes[schema.GroupVersion{Version: "v1"}]["pods"] != "bmV3" || r.v2 != nil {
		t.Errorf("got %+v", r)
	}
	if got := sortedPaths(s.seen()); got != "/api /api/v1 /apis /apis/apps/v1 /openapi/v2 /openapi/v3 /readyz" {
		t.Errorf("requests: %s", got)
	}
}

func TestTheHalfOfAServerThatIsStartingIsNotTaken(t *testing.T) {
	s := newAPIServer(t)
	d := usual()
	s.serveDocuments(d)
	c, a := s.documents(t), assign("/v1/pods", "apps/v1/deployments")
	first := c.read(t.Context(), a)

	half := usual()
	delete(half.schemas, "apis/apps/v1")
	half.hashes["/v1/pods"] = "bmV3"
	s.serveDocuments(half)
	s.on("/readyz", text(500, "starting"))
	a.incarnation = 2
	if r := c.read(t.Context(), a); r.result != resultUnready || r.documents != nil || !r.failed || !strings.Contains(r.err.Error(), "starting") {
		t.Errorf("got %+v", r)
	}
	// Some servers say that they are ready before all their documents are.
	s.on("/readyz", text(200, "ok"))
	r := c.read(t.Context(), a)
	if r.documents == nil || r.failed || r.err == nil {
		t.Fatalf("got %+v", r)
	}
	if r.documents.OpenAPIV3["apis/apps/v1"].Hash != first.documents.OpenAPIV3["apis/apps/v1"].Hash || !strings.Contains(r.err.Error(), "apis/apps/v1") {
		t.Errorf("an OpenAPI document looked gone while the server started: %v", r.err)
	}
	// But what a server really has no more is gone in the end, or once its view says so.
	gone := a
	gone.view = &View{Groups: groups("/v1/pods")}
	if r := c.read(t.Context(), gone); r.err != nil || r.documents.OpenAPIV3["apis/apps/v1"].Hash != "" {
		t.Errorf("its view says that it is gone: got %+v", r)
	}
	s.serveDocuments(d)
	c.read(t.Context(), a)
	s.serveDocuments(half)
	c.read(t.Context(), a)
	c.later(again)
	if r := c.read(t.Context(), a); r.err != nil || r.documents.OpenAPIV3["apis/apps/v1"].Hash != "" {
		t.Errorf("it stays missing: got %+v", r)
	}
}

func TestOneDocumentThatCannotBeReadCostsOnlyItself(t *testing.T) {
	for path, reads := range map[string]func(documentsReading) bool{
		"/api":          func(r documentsReading) bool { return len(r.documents.Addresses) == 1 },
		"/apis":         func(r documentsReading) bool { return len(r.documents.Listed) == 2 },
		"/apis/apps/v1": func(r documentsReading) bool { return len(r.documents.StorageVersionHashes) == 2 },
		"/openapi/v2":   func(r documentsReading) bool { return r.v2 != nil },
	} {
		for name, h := range map[string]http.HandlerFunc{"503": text(503, "etcd"), "HTML": typed("text/html", []byte("<html>")), "half": typed("application/json", []byte(`{"kind":`))} {
			t.Run(path+" "+name, func(t *testing.T) {
				s := newAPIServer(t)
				s.serveDocuments(usual())
				s.on(path, h)
				c, a := s.documents(t), assign("/v1/pods", "apps/v1/deployments")
				r := c.read(t.Context(), a)
				if r.result != resultInvalid || r.failed || r.documents == nil || reads(r) || !strings.Contains(r.err.Error(), path) {
					t.Fatalf("got %+v", r)
				}
				if len(r.documents.OpenAPIV3) != 3 {
					t.Errorf("others are missing: %+v", r.documents)
				}
				s.serveDocuments(usual())
				c.later(again)
				if r := c.read(t.Context(), a); r.err != nil || !reads(r) {
					t.Errorf("once it can be read: got %+v", r)
				}
				// What was read once stays.
				s.on(path, h)
				c.later(round)
				if r := c.read(t.Context(), a); r.documents == nil || path != "/openapi/v2" && !reads(r) {
					t.Errorf("got %+v", r)
				}
			})
		}
	}
}

func hangs(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }

func TestAnAggregatedAPIThatIsSlowCostsOnlyItsOwnDocument(t *testing.T) {
	for _, path := range []string{"/apis/apps/v1", "/api", "/apis"} {
		t.Run(path, func(t *testing.T) {
			s := newAPIServer(t)
			s.serveDocuments(usual())
			s.on(path, hangs)
			c, a := s.documents(t), assign("/v1/pods", "apps/v1/deployments")
			c.timeout = 300 * time.Millisecond
			r := c.read(t.Context(), a)
			if r.failed || r.documents == nil || r.v2 == nil || r.result != resultUnreachable || r.what != path {
				t.Fatalf("got %+v", r)
			}
			read := 0
			for _, is := range []bool{len(r.documents.Addresses) > 0, len(r.documents.Listed) > 0, len(r.documents.StorageVersionHashes) == 2} {
				if is {
					read++
				}
			}
			if read != 2 {
				t.Errorf("not all others were read: %+v", r.documents)
			}
			// It is not asked for each time, not even while there are changes, so that the others are followed as fast as before.
			for range 3 {
				s.seen()
				c.later(again)
				a.view = &View{Groups: groups("/v1/pods", "apps/v1/deployments", fmt.Sprintf("apps/v1/x%p", a.view))}
				if r := c.read(t.Context(), a); r.err != nil || slices.Contains(strings.Fields(paths(s.seen())), path) {
					t.Errorf("it was asked for again: %+v", r)
				}
			}
			s.serveDocuments(usual())
			c.later(rested)
			c.read(t.Context(), a)
			if got := paths(s.seen()); !slices.Contains(strings.Fields(got), path) {
				t.Errorf("it is never asked for again: %s", got)
			}
		})
	}
}

func TestAServerThatAnswersNoMoreIsNotWaitedForDocumentByDocument(t *testing.T) {
	s := newAPIServer(t)
	d := usual()
	view := []string{"/v1/pods"}
	for i := range 40 {
		key := fmt.Sprintf("g%d.example.com/v1/things", i)
		view, d.hashes[key] = append(view, key), "8aSe+NMegvE="
	}
	s.serveDocuments(d)
	c := s.documents(t)
	c.timeout = 300 * time.Millisecond
	c.read(t.Context(), assign("/v1/pods"))
	for i := range 40 {
		s.on(fmt.Sprintf("/apis/g%d.example.com/v1", i), hangs)
	}
	s.on("/readyz", hangs)
	began := time.Now()
	if r := c.read(t.Context(), assign(view...)); !r.failed || r.documents != nil || r.result != resultUnreachable {
		t.Errorf("got %+v", r)
	}
	if took := time.Since(began); took > 5*c.timeout {
		t.Errorf("it took %s", took)
	}
}

func TestWithoutItsIndexNothingIsSaidOfAServer(t *testing.T) {
	for name, h := range map[string]http.HandlerFunc{
		"403": text(403, "no"), "404": text(404, "404 page not found"), "HTML": typed("text/html", []byte("<html>")),
		"no index": typed("text/plain", []byte(`{}`)), "hangs": func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() },
	} {
		t.Run(name, func(t *testing.T) {
			s := newAPIServer(t)
			s.serveDocuments(usual())
			s.on("/openapi/v3", h)
			c := s.documents(t)
			c.timeout = 200 * time.Millisecond
			if r := c.read(t.Context(), assign("/v1/pods")); r.documents != nil || !r.failed || r.err == nil {
				t.Errorf("got %+v", r)
			}
			s.serveDocuments(usual())
			c.timeout = 10 * time.Second
			if r := c.read(t.Context(), assign("/v1/pods")); r.documents == nil {
				t.Errorf("once it answers: got %+v", r)
			}
		})
	}
}

func TestWantedOpenAPIDocumentsAreReadAsTheyWereListed(t *testing.T) {
	s := newAPIServer(t)
	d := usual()
	s.serveDocuments(d)
	// One that changes after the index was read is not taken for the one that was wanted.
	s.on("/openapi/v3/api/v1", http.RedirectHandler("/openapi/v3/api/v1?hash=NEW", http.StatusMovedPermanently).ServeHTTP)
	// One of a server that gives its documents other hashes is taken, but says nothing of other servers' documents.
	s.on("/openapi/v3/.well-known/openid-configuration", typed("application/json", []byte(`{"x":1}`)))
	c, a := s.documents(t), assign("/v1/pods")
	a.wanted = map[string]string{"apis/gone/v1": "OLD"}
	for path, document := range d.schemas {
		a.wanted[path] = hash([]byte(document))
	}
	r := c.read(t.Context(), a)
	if got := r.bodies["apis/apps/v1"]; string(got.json) != d.schemas["apis/apps/v1"] || !got.proven || got.hash != a.wanted["apis/apps/v1"] {
		t.Errorf("got %+v", got)
	}
	if got := r.bodies[".well-known/openid-configuration"]; string(got.json) != `{"x":1}` || got.proven {
		t.Errorf("got %+v", got)
	}
	if len(r.bodies) != 2 || r.failed {
		t.Errorf("got %+v", r)
	}
	if got := paths(s.seen()); strings.Contains(got, "gone") {
		t.Errorf("what is not listed was asked for: %s", got)
	}
	// What it could not give is not asked for again at once.
	c.read(t.Context(), a)
	if got := paths(s.seen()); strings.Contains(got, "/openapi/v3/api/v1") {
		t.Errorf("requests: %s", got)
	}
}

// However a server lies, it costs no more memory than real ones do.
func TestOpenAPIDocumentsThatAreTooLargeAreLeftOut(t *testing.T) {
	s := newAPIServer(t)
	d := usual()
	s.serveDocuments(d)
	endless := func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_, err := io.WriteString(w, `{"a":"`)
		for chunk := strings.Repeat("a", 100_000); err == nil; {
			_, err = io.WriteString(w, chunk)
		}
	}
	s.on("/openapi/v3/api/v1", endless)
	s.on("/openapi/v2", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("Content-Length", fmt.Sprint(maxOpenAPIBytes+1))
		w.WriteHeader(http.StatusOK)
	})
	a := assign("/v1/pods")
	a.budget = 1000
	a.wanted = map[string]string{}
	for path, document := range d.schemas {
		a.wanted[path] = hash([]byte(document))
	}
	r := s.documents(t).read(t.Context(), a)
	if r.documents == nil || r.v2 != nil || len(r.bodies) != 2 || r.dropped[reasonOversized] != 2 || r.failed || r.result != resultInvalid {
		t.Errorf("got %+v", r)
	}
	a.budget = int64(len(`{"core":1}`))
	r = s.documents(t).read(t.Context(), a)
	if len(r.bodies) != 1 || r.dropped[reasonOversized] != 3 {
		t.Errorf("with no room for more: got %+v", r)
	}
}

func TestOnlyRealETagsAreShownAgain(t *testing.T) {
	for etag, want := range map[string]bool{
		`"A1"`: true, `W/"A1"`: true, `""`: true, `A1`: false, ``: false, `"`: false, `W/`: false, `"a"b"`: false, "\"a\nb\"": false, `"a b"`: false,
		`"` + strings.Repeat("A", 300) + `"`: false,
	} {
		if validETag(etag) != want {
			t.Errorf("%q: %v", etag, !want)
		}
	}
}
