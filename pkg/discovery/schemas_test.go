package discovery

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"xds-server/pkg/peers"
)

// serveSchemas makes a server's documents "path=content" words, of which it gives those that are wanted. It says what
// was wanted of it.
func (w *world) serveSchemas(name string, content ...string) *[]string {
	d, contents, wanted := &Documents{OpenAPIV3: map[string]Schema{}}, map[string]string{}, &[]string{}
	for _, word := range content {
		path, text, _ := strings.Cut(word, "=")
		d.OpenAPIV3[path], contents[path] = Schema{Hash: hash([]byte(text))}, text
	}
	var v2 *OpenAPIV2
	for i := range content {
		v2 = &OpenAPIV2{Hash: hash([]byte(content[i])), JSON: []byte(content[i])}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.others[name+":1"] = func(_ context.Context, a assignment) documentsReading {
		r := documentsReading{result: resultConfirmed, documents: d, bodies: map[string]body{}}
		if etag := `"` + v2.Hash + `"`; a.v2ETag != etag {
			r.v2, r.v2ETag = v2, etag
		}
		for _, path := range slices.Sorted(maps.Keys(a.wanted)) {
			if a.wanted[path] == d.OpenAPIV3[path].Hash {
				*wanted = append(*wanted, path)
				r.bodies[path] = body{hash: a.wanted[path], json: []byte(contents[path]), proven: true}
			}
		}
		return r
	}
	return wanted
}

// schemas are the OpenAPI documents that are known, as "a: path=content path; b: …".
func (w *world) schemas() string {
	var out []string
	for _, o := range w.poller.Snapshot() {
		s := o.Server.Name + ":"
		if o.Documents == nil {
			s += " ?"
		} else {
			for _, path := range slices.Sorted(maps.Keys(o.Documents.OpenAPIV3)) {
				s += " " + path
				if b := o.Documents.OpenAPIV3[path].JSON; b != nil {
					s += "=" + string(b)
				}
			}
		}
		out = append(out, s)
	}
	return strings.Join(out, "; ")
}

func (w *world) expectSchemas(want string) {
	w.t.Helper()
	if got := w.schemas(); got != want {
		w.t.Errorf("got  %s\nwant %s", got, want)
	}
}

func TestOpenAPIDocumentsAreReadOnlyWhereServersDiffer(t *testing.T) {
	inWorld(t, func(w *world) {
		for _, n := range []string{"a", "b", "c"} {
			w.serves(n, "/v1/pods")
			w.serveSchemas(n, "api/v1=1", "apis/apps/v1=2")
		}
		w.lists("a", "b", "c")
		w.pass(time.Minute)
		w.expectSchemas("a: api/v1 apis/apps/v1; b: api/v1 apis/apps/v1; c: api/v1 apis/apps/v1")

		w.serveSchemas("c", "api/v1=1", "apis/apps/v1=new", "apis/more/v1=3")
		before := len(w.changes)
		w.pass(2 * interval)
		w.expectSchemas("a: api/v1 apis/apps/v1=2; b: api/v1 apis/apps/v1=2; c: api/v1 apis/apps/v1=new apis/more/v1=3")
		if len(w.changes) == before {
			t.Error("nobody was told")
		}
		s := w.poller.Snapshot()
		if x, y := s[0].Documents, s[1].Documents; &x.OpenAPIV3["apis/apps/v1"].JSON[0] != &y.OpenAPIV3["apis/apps/v1"].JSON[0] || x.OpenAPIV2 != y.OpenAPIV2 {
			t.Error("equal documents are kept twice")
		}
		before = len(w.changes)
		w.pass(time.Minute)
		if len(w.changes) != before || w.poller.Snapshot()[0].Documents != s[0].Documents {
			t.Error("something was told as a change, though nothing changed")
		}
		// What no longer differs is dropped.
		w.serveSchemas("c", "api/v1=1", "apis/apps/v1=2")
		w.pass(2 * interval)
		w.expectSchemas("a: api/v1 apis/apps/v1; b: api/v1 apis/apps/v1; c: api/v1 apis/apps/v1")
		if got := s[2].Documents.OpenAPIV3["apis/more/v1"].JSON; string(got) != "3" {
			t.Error("documents that others hold were changed")
		}
	})
}

func TestTheDocumentsOfAServerThatIsAwayStayAsLongAsItsView(t *testing.T) {
	inWorld(t, func(w *world) {
		for n, content := range map[string]string{"a": "1", "b": "2"} {
			w.serves(n, "/v1/pods")
			w.serveSchemas(n, "api/v1="+content)
		}
		w.lists("a", "b")
		w.pass(2 * interval)
		w.expectSchemas("a: api/v1=1; b: api/v1=2")
		w.says("b", down)
		w.pass(2 * interval)
		wanted := w.serveSchemas("b", "api/v1=other")
		*wanted = nil
		w.pass(hold - time.Minute)
		w.expectSchemas("a: api/v1=1; b: api/v1=2")
		if len(*wanted) != 0 {
			t.Error("a server that is away was asked")
		}
		w.pass(2 * time.Minute)
		w.expectSchemas("a: api/v1; b: ?")
		if got := w.poller.Snapshot()[1].ETags; len(got) != 0 {
			t.Errorf("ETags of what is no longer known: %v", got)
		}
		w.serves("b", "/v1/pods")
		w.pass(2 * lastBackoff)
		w.expectSchemas("a: api/v1=1; b: api/v1=other")
	})
}

func TestAServersOtherDocumentsAreReadOnlyWhileItIsReady(t *testing.T) {
	inWorld(t, func(w *world) {
		var incarnations []int
		w.others["a:1"] = func(_ context.Context, a assignment) documentsReading {
			incarnations = append(incarnations, a.incarnation)
			return documentsReading{result: resultConfirmed, documents: &Documents{}}
		}
		w.says("a", starting)
		w.lists("a")
		w.pass(time.Minute)
		if len(incarnations) != 0 {
			t.Errorf("it was read %d times before it was ready", len(incarnations))
		}
		w.serves("a", "/v1/pods")
		w.pass(time.Minute)
		if n := len(incarnations); n < 27 || n > 34 {
			t.Errorf("it was read %d times in a minute", n)
		}
		w.says("a", starting)
		w.pass(time.Minute)
		n := len(incarnations)
		w.pass(time.Minute)
		w.serves("a", "/v1/pods")
		w.pass(interval * 2)
		if incarnations[0] != 1 || incarnations[n-1] != 1 || incarnations[n] != 2 {
			t.Errorf("a restart is not told: %v", incarnations)
		}
	})
}

func TestNoDocumentDelaysAView(t *testing.T) {
	inWorld(t, func(w *world) {
		w.others["a:1"] = func(ctx context.Context, _ assignment) documentsReading {
			<-ctx.Done()
			return documentsReading{}
		}
		w.serves("a", "/v1/pods")
		w.lists("a")
		w.pass(time.Minute)
		if n := len(w.asked("a:1")); n < 28 || n > 34 {
			t.Errorf("its view was read %d times in a minute", n)
		}
		w.says("a", starting)
		w.pass(3 * time.Second)
		w.expect("a [/v1/pods]")
	})
}

func TestDocumentsThatCannotBeReadAreAskedForLessOften(t *testing.T) {
	inWorld(t, func(w *world) {
		n := 0
		w.others["a:1"] = func(context.Context, assignment) documentsReading {
			n++
			return documentsReading{result: resultUnreachable, failed: true, err: errors.New("reset")}
		}
		w.serves("a", "/v1/pods")
		w.lists("a")
		w.pass(10 * time.Minute)
		if n > 140 || n < 100 {
			t.Errorf("asked %d times in ten minutes", n)
		}
		if !slices.Contains(w.metrics(), fmt.Sprintf("xds_server_document_polls_total{result=unreachable,server=a} %d", n)) {
			t.Error("they are not counted")
		}
	})
}

func TestETagsAreOfWhatIsKnown(t *testing.T) {
	inWorld(t, func(w *world) {
		v := &View{Groups: groups("/v1/pods")}
		r := reading{result: resultConfirmed, ready: isReady, view: v, etags: map[string]string{"/api": `"1"`, "/apis": `"2"`}}
		w.says("a", r)
		w.others["a:1"] = func(context.Context, assignment) documentsReading {
			return documentsReading{result: resultRead, documents: &Documents{}, indexETag: `"3"`, v2: &OpenAPIV2{Hash: "X"}, v2ETag: `"4"`}
		}
		w.lists("a")
		if got := fmt.Sprint(w.poller.Snapshot()[0].ETags); got != `map[/api:"1" /apis:"2" /openapi/v2:"4" /openapi/v3:"3"]` {
			t.Error(got)
		}
		// A new ETag of the same view.
		r.etags = map[string]string{"/api": `"1"`, "/apis": `"new"`}
		w.says("a", r)
		w.pass(2 * interval)
		if o := w.poller.Snapshot()[0]; o.ETags["/apis"] != `"new"` || o.View != v {
			t.Errorf("%+v", o)
		}
	})
}

func TestDocumentsAreReadWhereAServerIsNow(t *testing.T) {
	inWorld(t, func(w *world) {
		w.serves("a", "/v1/pods")
		w.serveSchemas("a", "api/v1=1")
		w.lists("a")
		w.serveSchemas("elsewhere", "api/v2=1")
		w.serves("elsewhere", "/v1/pods")
		l := at("a")
		l.Address = "elsewhere:1"
		w.list <- []peers.Server{l}
		synctest.Wait()
		w.pass(2 * interval)
		w.expectSchemas("a: api/v2")
	})
}

// withhold makes a server give the documents of OpenAPI v3 that are wanted of it only while that is true; told says that
// it tells which it does not give.
func (w *world) withhold(name string, given *atomic.Bool, told bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	read := w.others[name+":1"]
	w.others[name+":1"] = func(ctx context.Context, a assignment) documentsReading {
		r := read(ctx, a)
		if !given.Load() {
			r.bodies = nil
			if told {
				r.missing = a.wanted
			}
		}
		return r
	}
}

func TestANewIndexIsShownTogetherWithTheDocumentsThatItLeadsTo(t *testing.T) {
	inWorld(t, func(w *world) {
		for _, n := range []string{"a", "b"} {
			w.serves(n, "/v1/pods")
			w.serveSchemas(n, "api/v1="+n)
		}
		w.lists("a", "b")
		w.pass(2 * interval)
		w.expectSchemas("a: api/v1=a; b: api/v1=b")

		var given atomic.Bool
		w.serveSchemas("a", "api/v1=a", "apis/apps/v1=1")
		w.serveSchemas("b", "api/v1=new", "apis/apps/v1=2")
		w.withhold("b", &given, false)
		w.pass(2 * interval)
		w.expectSchemas("a: api/v1=a; b: api/v1=b")
		given.Store(true)
		w.pass(interval)
		w.expectSchemas("a: api/v1=a apis/apps/v1=1; b: api/v1=new apis/apps/v1=2")
	})
}

func TestADocumentThatDoesNotComeHoldsUpTheOthersForAMomentOnly(t *testing.T) {
	for name, told := range map[string]bool{"the server says nothing": false, "the server refuses it": true} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, func(w *world) {
				var given atomic.Bool
				given.Store(true)
				for _, n := range []string{"a", "b"} {
					w.serves(n, "/v1/pods")
					w.serveSchemas(n, "api/v1="+n)
					w.withhold(n, &given, told)
				}
				w.lists("a", "b")
				w.pass(2 * interval)
				given.Store(false)
				w.serveSchemas("b", "api/v1=new")
				w.withhold("b", &given, told)
				if w.pass(2 * interval); !told {
					w.expectSchemas("a: api/v1=a; b: api/v1=b")
					w.pass(settlingAtMost)
				}
				w.expectSchemas("a: api/v1=a; b: api/v1")
				// What comes next is not held up again by the same document.
				w.serveSchemas("a", "api/v1=more")
				w.pass(2 * interval)
				w.expectSchemas("a: api/v1=more; b: api/v1")
				before := len(w.changes)
				w.pass(time.Minute)
				if len(w.changes) != before {
					t.Error("something was told as a change, though nothing changed")
				}
			})
		})
	}
}
