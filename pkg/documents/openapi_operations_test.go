package documents

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"xds-server/pkg/discovery"
)

// methods are those of a path in a document, each with its parameters.
func methods(t interface{ Fatalf(string, ...any) }, document []byte, path string) map[string][]string {
	var d struct {
		Paths      map[string]map[string]json.RawMessage
		Parameters map[string]struct{ Name string }
	}
	if err := json.Unmarshal(document, &d); err != nil {
		t.Fatalf("%s in %s", err, document)
	}
	type parameter struct {
		Name string
		Ref  string `json:"$ref"`
	}
	names := func(raw json.RawMessage) (out []string) {
		var list []parameter
		if raw != nil && json.Unmarshal(raw, &list) != nil {
			t.Fatalf("no parameters: %s", raw)
		}
		for _, p := range list {
			if p.Ref != "" {
				p.Name = d.Parameters[p.Ref[len("#/parameters/"):]].Name
			}
			out = append(out, p.Name)
		}
		return out
	}
	out := map[string][]string{}
	for _, method := range operations {
		if raw, ok := d.Paths[path][method]; ok {
			var o map[string]json.RawMessage
			if err := json.Unmarshal(raw, &o); err != nil {
				t.Fatalf("%s in %s", err, raw)
			}
			out[method] = append(names(o["parameters"]), names(d.Paths[path]["parameters"])...)
		}
	}
	return out
}

// Servers of different versions have a resource with different verbs: kubectl and other clients look in the document
// whether they may patch.
func TestEveryMethodOfEveryServerIsInTheDocuments(t *testing.T) {
	verbs := map[string]string{"get": "get", "put": "update", "post": "create", "delete": "delete", "patch": "patch"}
	const path = "/apis/a.io/v1/r"
	rapid.Check(t, func(t *rapid.T) {
		var all []discovery.Observation
		want := map[string]map[string]bool{} // the parameters that a method must have
		for i := range rapid.IntRange(2, 4).Draw(t, "servers") {
			item := object{"parameters": []byte(fmt.Sprintf(`[{"name":"shared-%d","in":"query"}]`, i%2))}
			itemV2 := object{"parameters": []byte(`[{"$ref":"#/parameters/shared"}]`)}
			some := rapid.SliceOfDistinct(rapid.SampledFrom(slices.Sorted(maps.Keys(verbs))), rapid.ID).Draw(t, "methods")
			var has []string
			for _, m := range some {
				has = append(has, verbs[m])
				item[m] = []byte(`{"parameters":[{"name":"own","in":"query"}],"responses":{"200":{"description":"OK"}}}`)
				itemV2[m] = item[m]
				if want[m] == nil {
					want[m] = map[string]bool{}
				}
				want[m][fmt.Sprint("shared-", i%2)] = true
			}
			paths := object{path: item.encode()}.encode()
			pathsV2 := object{path: itemV2.encode(), fmt.Sprint("/x", rapid.IntRange(0, 1).Draw(t, "other")): []byte("{}")}.encode()
			o := schemaServer{serves: "a.io/v1/r",
				v3: map[string]string{"apis/a.io/v1": string(object{"paths": paths}.encode())},
				v2: string(object{"paths": pathsV2, "parameters": []byte(fmt.Sprintf(`{"shared":{"name":"shared-%d","in":"query","type":"string"}}`, i%2))}.encode()),
			}.observation(fmt.Sprint(i))
			o.View.Groups[0].Versions[0].Resources[0].Verbs = has
			all = append(all, o)
		}
		o := openAPIOfObservations(all)
		for _, at := range []string{"/openapi/v2", "/openapi/v3/apis/a.io/v1"} {
			if _, verdict := o.find(at); verdict == Same {
				continue
			}
			if at == "/openapi/v2" {
				<-o.v2.united().done
			}
			got := methods(t, fetched(t, o, at).Body.Bytes(), path)
			for m, parameters := range want {
				has := got[m]
				if !slices.Contains(has, "own") || !slices.ContainsFunc(has, func(p string) bool { return parameters[p] }) {
					t.Fatalf("%s: %s has the parameters %v, want own and one of %v", at, m, has, parameters)
				}
			}
			if len(got) != len(want) {
				t.Fatalf("%s has %v, want %v", at, got, want)
			}
		}
	})
}

func TestADocumentWithFewerVerbsIsNotTakenForAll(t *testing.T) {
	a, b := viewOf("a.io/v1/r", "a.io/v1/r/s"), viewOf("a.io/v1/r", "a.io/v1/r/s")
	b.Groups[0].Versions[0].Resources[0].Subresources[0].Verbs = []string{"get", "patch"}
	merged := discovery.Merge(a, b).Find(gv("a.io", "v1"))
	if covers(a.Find(gv("a.io", "v1")), merged) || !covers(b.Find(gv("a.io", "v1")), merged) {
		t.Error("a verb is ignored")
	}
}
