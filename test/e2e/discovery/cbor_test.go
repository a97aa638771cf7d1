package discovery

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/runtime/serializer/cbor/direct"

	"xds-server/test/e2e/suite"
	"xds-server/test/lab"
	"xds-server/test/plane"
)

// Servers of a version that has all documents in CBOR, behind a gate that is off by default.
func TestCBOR(t *testing.T) {
	gate := []string{"--feature-gates=CBORServingAndStorage=true"}
	w := alone(t, plane.Options{Failover: true},
		lab.NodeConfig{Name: "old", Version: lab.Kube137, RuntimeConfig: []string{"policy/v1=false"}, ExtraArgs: gate},
		lab.NodeConfig{Name: "new", Version: lab.Kube137, RuntimeConfig: []string{"batch/v1=false"}, ExtraArgs: gate})
	suite.Scenario(t, "14-cbor", "where the servers offer CBOR every aggregated and legacy document is there in it, equal through both fronts, and says what it says in JSON", func(s *suite.S) {
		docs := settled(s, w, w.nodes, "servers with CBOR", union(s, w, w.nodes...))
		client := s.Client(w.Lab, w.Token("bob"), lab.HTTP2)
		list := []document{{"/api", asJSON + aggregated}, {"/apis", asJSON + aggregated}, {"/api", asJSON}, {"/apis", asJSON}}
		for _, d := range versionDocuments(mustList(s, client, w.old.FrontURL(), "")) {
			if d.accept == asJSON {
				list = append(list, d)
			}
		}
		for _, d := range list {
			accept := strings.Replace(d.accept, asJSON, asCBOR, 1)
			var first *lab.Answer
			for _, n := range w.nodes {
				a := s.Call(client, "GET", n.FrontURL()+d.path, "", http.Header{"Accept": {accept}})
				if a.Status != 200 || a.Header.Get("Content-Type") != accept || a.Header.Get(toldBy) != "merged" {
					own := s.Call(client, "GET", n.DirectURL()+d.path, "", http.Header{"Accept": {accept}})
					s.Errorf("%s as %s at the front of %s answered %d %s, %q; the server itself %d: %.200q",
						d.path, accept, n.Name, a.Status, a.Header.Get("Content-Type"), a.Header.Get(toldBy), own.Status, a.Body)
					continue
				}
				var got, want any
				if err := direct.Unmarshal(a.Body, &got); err != nil {
					s.Errorf("%s as %s: %v", d.path, accept, err)
				}
				if err := json.Unmarshal(docs[d].body, &want); err != nil {
					s.Fatal(err)
				}
				if diff := cmp.Diff(want, plain(s, got)); diff != "" {
					s.Errorf("%s as %s at the front of %s and in JSON:\n%.1000s", d.path, accept, n.Name, diff)
				}
				if first == nil {
					first = a
				}
				if string(a.Body) != string(first.Body) || a.Header.Get("ETag") != first.Header.Get("ETag") {
					s.Errorf("%s as %s differs:%s", d.path, accept, firstDifference(a.Body, first.Body))
				}
				b := s.Call(client, "GET", n.FrontURL()+d.path, "", http.Header{"Accept": {accept}, "If-None-Match": {a.Header.Get("ETag")}})
				if b.Status != 304 {
					s.Errorf("%s as %s with its ETag answered %d", d.path, accept, b.Status)
				}
			}
		}
		for _, n := range w.nodes {
			accept := asCBOR + aggregated + nopeer
			a, own := s.Call(client, "GET", n.FrontURL()+"/apis", "", http.Header{"Accept": {accept}}), s.Call(client, "GET", n.DirectURL()+"/apis", "", http.Header{"Accept": {accept}})
			if a.Status != 200 || a.Header.Get(toldBy) != "local" || a.Header.Get("ETag") != own.Header.Get("ETag") {
				s.Errorf("/apis with nopeer at the front of %s answered %d, %q", n.Name, a.Status, a.Header.Get(toldBy))
			}
		}
		fmt.Printf("       %d documents in CBOR\n", len(list))
	})
}

// plain is a value as JSON has it.
func plain(s *suite.S, v any) any {
	s.Helper()
	b, err := json.Marshal(v)
	if err != nil {
		s.Fatal(err)
	}
	var out any
	if err := json.Unmarshal(b, &out); err != nil {
		s.Fatal(err)
	}
	return out
}
