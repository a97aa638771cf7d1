package documents

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"xds-server/pkg/discovery"
)

// drawServers makes servers of two groups whose documents have the paths of what they serve.
func drawServers(t *rapid.T) []schemaServer {
	var out []schemaServer
	for range rapid.IntRange(2, 4).Draw(t, "servers") {
		s := schemaServer{v3: map[string]string{"version": schemaOf([]string{"/version"}, map[string]string{"V": drawSchema(t)})}, away: rapid.Bool().Draw(t, "away")}
		swagger := object{"paths": []byte("{}"), "definitions": []byte("{}")}
		var all []string
		for _, gv := range []string{"a.io/v1", "a.io/v2", "b.io/v1"} {
			var paths []string
			schemas := map[string]string{}
			for _, r := range rapid.SliceOfDistinct(rapid.SampledFrom([]string{"q", "r", "s"}), func(s string) string { return s }).Draw(t, gv) {
				s.serves += " " + gv + "/" + r
				paths = append(paths, "/apis/"+gv+"/"+r)
				schemas[r] = drawSchema(t)
			}
			if len(paths) > 0 {
				s.v3["apis/"+gv] = schemaOf(paths, schemas)
				all = append(all, paths...)
			}
		}
		top, _ := parseObject([]byte(schemaOf(all, nil)))
		swagger["paths"] = top["paths"]
		definitions := object{}
		for _, name := range []string{"x", "y", "z"} {
			if rapid.Bool().Draw(t, name) {
				definitions[name] = []byte(drawSchema(t))
			}
		}
		swagger["definitions"] = definitions.encode()
		s.v2 = string(swagger.encode())
		out = append(out, s)
	}
	return out
}

func drawSchema(t *rapid.T) string {
	o := object{"type": []byte(`"object"`)}
	kinds := []gvk{}
	for _, k := range []string{"K", "L"} {
		if rapid.Bool().Draw(t, k) {
			kinds = append(kinds, gvk{"g", k, "v1"})
		}
	}
	o.setKinds(kinds)
	properties := object{}
	for _, p := range []string{"one", "two"} {
		if rapid.Bool().Draw(t, p) {
			properties[p] = []byte(`{"type":"string"}`)
		}
	}
	o.set("properties", properties)
	return string(o.encode())
}

func TestEveryServersDocumentsGiveTheSameWhateverTheirOrder(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		servers := drawServers(t)
		var all []discovery.Observation
		for i, s := range servers {
			all = append(all, s.observation(fmt.Sprint(i)))
		}
		shuffled := rapid.Permutation(all).Draw(t, "order")
		for i := range shuffled {
			shuffled[i].Server.Name = fmt.Sprint("other-", i)
		}
		a, b := openAPIOfObservations(all), openAPIOfObservations(shuffled)
		for _, path := range []string{"/openapi/v2", "/openapi/v3", "/openapi/v3/version", "/openapi/v3/apis/a.io/v1", "/openapi/v3/apis/a.io/v2", "/openapi/v3/apis/b.io/v1"} {
			_, va := a.find(path)
			_, vb := b.find(path)
			if va != vb {
				t.Fatalf("%s is %s and %s", path, va, vb)
			}
			if va == Merged && !bytes.Equal(fetched(t, a, path).Body.Bytes(), fetched(t, b, path).Body.Bytes()) {
				t.Fatalf("%s depends on the order", path)
			}
		}
		if a.differ() != b.differ() {
			t.Fatalf("whether they differ depends on the order")
		}
	})
}

func TestTheIndexLeadsToEveryPathOfEveryServer(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		servers := drawServers(t)
		o := openAPIOf(servers...)
		if _, v := o.find("/openapi/v3"); v == Same {
			return
		}
		index := indexed(t, o)
		served := map[string]bool{}
		for path, at := range index {
			if _, v := o.find("/openapi/v3/" + path); v == Same {
				for _, s := range servers {
					if newContent("", []byte(s.v3[path])).hash != at[strings.Index(at, "=")+1:] {
						t.Fatalf("%s is not the hash that all servers have", at)
					}
				}
				for _, p := range pathsOf(t, []byte(servers[0].v3[path])) {
					served[p] = true
				}
				continue
			}
			w := fetched(t, o, at)
			if w.Code != 200 || !strings.HasSuffix(at, "?hash="+newContent("", w.Body.Bytes()).hash) {
				t.Fatalf("%s is answered %d with another document", at, w.Code)
			}
			for _, p := range pathsOf(t, w.Body.Bytes()) {
				served[p] = true
			}
		}
		for _, s := range servers {
			for path, body := range s.v3 {
				if index[path] == "" {
					t.Fatalf("%s is not in the index", path)
				}
				for _, p := range pathsOf(t, []byte(body)) {
					if !served[p] {
						t.Fatalf("%s is in no document", p)
					}
				}
			}
		}
	})
}

func TestOpenAPIV2HasEveryPathAndEachKindOnce(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		servers := drawServers(t)
		o := openAPIOf(servers...)
		if _, v := o.find("/openapi/v2"); v == Same {
			return
		}
		w := o.v2.united()
		select {
		case <-w.done:
		case <-time.After(10 * time.Second):
			t.Fatalf("it is not put together")
		}
		var got struct {
			Paths       map[string]any
			Definitions map[string]struct {
				Kinds []gvk `json:"x-kubernetes-group-version-kind"`
			}
		}
		if err := json.Unmarshal(w.content.body, &got); err != nil {
			t.Fatal(err)
		}
		owners := map[gvk]int{}
		for _, d := range got.Definitions {
			for _, k := range d.Kinds {
				owners[k]++
			}
		}
		for _, s := range servers {
			for _, p := range pathsOf(t, []byte(s.v2)) {
				if got.Paths[p] == nil {
					t.Fatalf("%s is missing", p)
				}
			}
			top, _ := parseObject([]byte(s.v2))
			definitions, _ := top.child("definitions")
			for name, d := range definitions {
				if _, ok := got.Definitions[name]; !ok {
					t.Fatalf("the definition %s is missing", name)
				}
				for _, k := range kindsOf(d) {
					if owners[k] == 0 {
						t.Fatalf("%v is missing", k)
					}
				}
			}
		}
	})
}

// FuzzServersOpenAPI: whatever servers say, nothing panics, and what is served is JSON.
func FuzzServersOpenAPI(f *testing.F) {
	doc := schemaOf([]string{"/a"}, map[string]string{"G": `{"type":"object","properties":{"a":{}},"x-kubernetes-group-version-kind":[{"group":"g","kind":"G","version":"v1"}]}`})
	f.Add([]byte(doc), []byte(schemaOf([]string{"/b"}, map[string]string{"G": `{"type":"object","properties":null,"x-kubernetes-group-version-kind":{}}`, "H": "null"})))
	f.Add([]byte(oldSwagger), []byte(newSwagger2))
	f.Add([]byte(`{"paths":{"/a":null,"x":1},"components":{"schemas":[]},"definitions":{"a":1}}`), []byte(`{"paths":{"/b":{"parameters":[null,{"$ref":"%"}]}},"parameters":{"p":null}}`))
	f.Add([]byte(strings.Repeat(`{"paths":`, 200)), []byte(`null`))
	f.Fuzz(func(t *testing.T, a, b []byte) {
		servers := []schemaServer{
			{serves: "g.io/v1/a", v3: map[string]string{"apis/g.io/v1": string(a)}, v2: string(a)},
			{serves: "g.io/v1/b", v3: map[string]string{"apis/g.io/v1": string(b)}, v2: string(b)},
		}
		o := openAPIOf(servers...)
		for _, path := range []string{"/openapi/v3", "/openapi/v3/apis/g.io/v1", "/openapi/v2"} {
			if o.v2.differ() && path == "/openapi/v2" && !o.v2.unread {
				settled(t, o)
			}
			if _, v := o.find(path); v != Merged {
				continue
			}
			for _, accept := range []string{"application/json", mediaProtobufV2 + "," + mediaProtobufV3} {
				w := fetched(t, o, path, "Accept", accept)
				if w.Header().Get("Content-Type") == mediaJSON && !json.Valid(w.Body.Bytes()) {
					t.Errorf("%s is no JSON: %s", path, w.Body)
				}
			}
		}
		o.problems()
	})
}
