package documents

import (
	"encoding/json"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	openapi_v2 "github.com/google/gnostic-models/openapiv2"
	"google.golang.org/protobuf/proto"
)

const (
	oldSwagger = `{"swagger":"2.0","info":{"title":"Kubernetes","version":"1"},
"paths":{"/apis/":{"get":{"responses":{"200":{"description":"OK"}}}},
 "/apis/g.io/v1beta1/a":{"parameters":[{"$ref":"#/parameters/p"}],"get":{"responses":{"200":{"description":"OK","schema":{"$ref":"#/definitions/v1beta1.A"}}}}}},
"definitions":{
 "Delete":{"type":"object","description":"old","properties":{"only-old":{"type":"string"},"both":{"type":"string"}},"x-kubernetes-group-version-kind":[{"group":"","kind":"Delete","version":"v1"},{"group":"g.io","kind":"Delete","version":"v1beta1"}]},
 "v1beta1.A":{"type":"object","x-kubernetes-group-version-kind":[{"group":"g.io","kind":"A","version":"v1beta1"}]},
 "old.Moved":{"type":"object","x-kubernetes-group-version-kind":[{"group":"g.io","kind":"Moved","version":"v1"}]},
 "Any":{}},
"parameters":{"p":{"name":"old","in":"query","type":"string"}}}`
	newSwagger2 = `{"swagger":"2.0","info":{"title":"Kubernetes","version":"2"},
"paths":{"/apis/":{"get":{"responses":{"200":{"description":"OK"}}}},"/apis/g.io/v1/a":{"parameters":[{"$ref":"#/parameters/p"}],"get":{"responses":{"200":{"description":"OK"}}}},"/apis/g.io/v1/b":{"get":{"responses":{"200":{"description":"OK"}}}}},
"definitions":{
 "Delete":{"type":"object","description":"new","properties":{"only-new":{"type":"string"},"both":{"type":"integer"}},"x-kubernetes-group-version-kind":[{"group":"","kind":"Delete","version":"v1"}]},
 "new.Moved":{"type":"object","x-kubernetes-group-version-kind":[{"group":"g.io","kind":"Moved","version":"v1"}]}},
"parameters":{"p":{"name":"new","in":"query","type":"string"}}}`
)

// settled waits until the united OpenAPI v2 is there.
func settled(t testing.TB, o *openAPI) {
	t.Helper()
	select {
	case <-o.v2.united().done:
	case <-time.After(20 * time.Second):
		t.Fatal("OpenAPI v2 is not put together")
	}
}

func TestOpenAPIV2HasWhatEveryServerHas(t *testing.T) {
	var bodies []string
	for _, servers := range [][]schemaServer{{{v2: oldSwagger}, {v2: newSwagger2}}, {{v2: newSwagger2}, {v2: oldSwagger}, {v2: newSwagger2}}} {
		o := openAPIOf(servers...)
		settled(t, o)
		bodies = append(bodies, fetched(t, o, "/openapi/v2").Body.String())
	}
	if bodies[0] != bodies[1] {
		t.Errorf("the order of servers makes a difference")
	}
	var got struct {
		Info        struct{ Version string }
		Paths       map[string]struct{ Parameters []map[string]string }
		Definitions map[string]struct {
			Description string
			Properties  map[string]struct{ Type string }
			Kinds       []gvk `json:"x-kubernetes-group-version-kind"`
		}
		Parameters map[string]struct{ Name string }
	}
	if err := json.Unmarshal([]byte(bodies[0]), &got); err != nil {
		t.Fatal(err)
	}
	if len(got.Paths) != 4 || got.Info.Version != "2" {
		t.Errorf("%d paths, of version %s", len(got.Paths), got.Info.Version)
	}
	// The beta's parameter keeps its meaning, under another name.
	ref := strings.TrimPrefix(got.Paths["/apis/g.io/v1beta1/a"].Parameters[0]["$ref"], "#/parameters/")
	if got.Parameters[ref].Name != "old" || got.Parameters["p"].Name != "new" {
		t.Errorf("%q of %v", ref, got.Parameters)
	}
	del := got.Definitions["Delete"]
	if del.Description != "new" || del.Properties["both"].Type != "integer" || len(del.Properties) != 3 {
		t.Errorf("%+v", del)
	}
	if want := []gvk{{"", "Delete", "v1"}, {"g.io", "Delete", "v1beta1"}}; !slices.Equal(del.Kinds, want) {
		t.Errorf("%v", del.Kinds)
	}
	if len(got.Definitions) != 5 || len(got.Definitions["new.Moved"].Kinds) != 1 || got.Definitions["old.Moved"].Kinds != nil {
		t.Errorf("a kind is not of one definition: %+v", got.Definitions)
	}
}

func TestOpenAPIV2IsServedInProtobuf(t *testing.T) {
	o := openAPIOf(schemaServer{v2: oldSwagger}, schemaServer{v2: newSwagger2})
	settled(t, o)
	for _, accept := range []string{"application/com.github.proto-openapi.spec.v2@v1.0+protobuf", "application/com.github.proto-openapi.spec.v2.v1.0+protobuf"} {
		w := fetched(t, o, "/openapi/v2", "Accept", accept)
		var document openapi_v2.Document
		if err := proto.Unmarshal(w.Body.Bytes(), &document); err != nil || w.Code != 200 || len(document.GetPaths().GetPath()) != 4 {
			t.Errorf("%d, %v, %d paths", w.Code, err, len(document.GetPaths().GetPath()))
		}
	}
}

func TestOpenAPIV2OfOddDocuments(t *testing.T) {
	const good = `{"paths":{"/a":{}}}`
	for _, c := range []struct {
		name    string
		servers []schemaServer
		want    Verdict
	}{
		{"nothing is known", nil, Absent},
		{"all have the same", []schemaServer{{v2: good}, {v2: good}}, Same},
		{"a server's is not read yet", []schemaServer{{v2: good}, {}}, Unread},
		{"a server that is away was never asked", []schemaServer{{v2: good}, {away: true}}, Unread},
		{"one is none", []schemaServer{{v2: good}, {v2: `{"paths":[]}`}}, Merged},
		{"none is one", []schemaServer{{v2: `[]`}, {v2: `{"paths":[]}`}}, Unread},
	} {
		o := openAPIOf(c.servers...)
		if c.want == Merged || c.name == "none is one" {
			settled(t, o)
			if len(o.problems()) != 1 {
				t.Errorf("%s: %v", c.name, o.problems())
			}
		}
		if _, got := o.find("/openapi/v2"); got != c.want {
			t.Errorf("%s: %s", c.name, got)
		}
	}
}

func TestWhoAsksTooEarlyIsToldToComeBack(t *testing.T) {
	w := newWorks(2)
	begun, end := make(chan struct{}), make(chan struct{})
	slow := func() (*content, error) { close(begun); <-end; return newContent("", nil), nil }
	first := w.get("a", slow)
	<-begun
	if c := first.wait(t.Context(), time.Millisecond); c != nil {
		t.Error("what isn't there is given")
	}
	made := 0
	count := func() (*content, error) { made++; return newContent("", nil), nil }
	second := w.get("b", count)
	if w.get("b", count) != second || w.get("c", count) == second || w.get("d", count) == second {
		t.Error("keys are mixed up")
	}
	<-second.done // it was dropped before its turn
	close(end)
	<-w.get("c", count).done
	<-w.get("d", count).done
	if second.err == nil || made != 2 {
		t.Errorf("%v, %d made", second.err, made)
	}
	if first.wait(t.Context(), time.Minute) == nil {
		t.Error("what was begun is not finished")
	}
	failing := w.get("e", func() (*content, error) { return nil, errNoObject })
	<-failing.done
	for _, c := range []struct {
		what  *work
		retry string
	}{
		{second, "1"},
		{newWork("that is being made"), "1"},
		{failing, ""},
	} {
		r := httptest.NewRecorder()
		unavailable(r, c.what)
		if r.Code != 503 || r.Header().Get("Retry-After") != c.retry || !strings.Contains(r.Body.String(), `"Status"`) {
			t.Errorf("%s: %d %v %s", c.what.key, r.Code, r.Header(), r.Body)
		}
	}
}
