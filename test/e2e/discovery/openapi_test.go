package discovery

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"

	openapiv2 "github.com/google/gnostic-models/openapiv2"
	openapiv3 "github.com/google/gnostic-models/openapiv3"
	"google.golang.org/protobuf/proto"

	"xds-server/test/e2e/suite"
	"xds-server/test/lab"
	"xds-server/test/plane"
)

func gunzip(b []byte) ([]byte, error) {
	r, err := gzip.NewReader(bytes.NewReader(b))
	if err != nil {
		return nil, err
	}
	return io.ReadAll(r)
}

// spec is what is compared of an OpenAPI document.
type spec struct {
	Paths       map[string]json.RawMessage
	Definitions map[string]json.RawMessage
	Components  struct{ Schemas map[string]json.RawMessage }
}

// served are its paths, and the methods of each.
func (d spec) served(s *suite.S) map[string]bool {
	s.Helper()
	out := map[string]bool{}
	for path, item := range d.Paths {
		var methods map[string]json.RawMessage
		if err := json.Unmarshal(item, &methods); err != nil {
			s.Fatal(err)
		}
		for m := range methods {
			out[path+" "+m] = true
		}
	}
	return out
}

// schemas wants OpenAPI of both versions to have what every server's has, under URLs that work.
func schemas(s *suite.S, p pair) {
	client := s.Client(p.Lab, p.Token("bob"), lab.HTTP2)
	wantV2, wantV3 := map[string]bool{}, map[string]map[string]bool{}
	for _, n := range p.nodes {
		maps.Copy(wantV2, readSpec(s, client, n.DirectURL()+"/openapi/v2").served(s))
		index, err := openAPIv3Index(s.Call(client, "GET", n.DirectURL()+"/openapi/v3", "", nil))
		if err != nil {
			s.Fatal(err)
		}
		for name, url := range index {
			if wantV3[name] == nil {
				wantV3[name] = map[string]bool{}
			}
			maps.Copy(wantV3[name], readSpec(s, client, n.DirectURL()+url).served(s))
		}
	}
	for _, n := range p.nodes {
		v2 := readSpec(s, client, n.FrontURL()+"/openapi/v2")
		if err := sameClaims(v2.served(s), wantV2); err != nil {
			s.Errorf("/openapi/v2 at the front of %s: %.1000v", n.Name, err)
		}
		a := s.Call(client, "GET", n.FrontURL()+"/openapi/v2", "", http.Header{"Accept": {openAPIv2Protobuf}})
		var document openapiv2.Document
		if err := proto.Unmarshal(a.Body, &document); err != nil || len(document.GetPaths().GetPath()) != len(v2.Paths) || len(document.GetDefinitions().GetAdditionalProperties()) != len(v2.Definitions) {
			s.Errorf("/openapi/v2 as protobuf at the front of %s answered %d: %v, %d paths, want %d", n.Name, a.Status, err, len(document.GetPaths().GetPath()), len(v2.Paths))
		}

		index, err := openAPIv3Index(s.Call(client, "GET", n.FrontURL()+"/openapi/v3", "", nil))
		if err != nil {
			s.Fatal(err)
		}
		if got, want := slices.Sorted(maps.Keys(index)), slices.Sorted(maps.Keys(wantV3)); !slices.Equal(got, want) {
			s.Errorf("/openapi/v3 at the front of %s has %v, want %v", n.Name, got, want)
		}
		for name, url := range index {
			schemaAt(s, client, n, name, url, wantV3[name])
		}
	}
}

func schemaAt(s *suite.S, client *http.Client, n *plane.Node, name, url string, want map[string]bool) {
	s.Helper()
	path, hash, ok := strings.Cut(url, "?hash=")
	if path != "/openapi/v3/"+name || !ok || hash == "" {
		s.Errorf("%s is at %s", name, url)
	}
	a := s.Want(client, "GET", n.FrontURL()+url, "", 200, "")
	if !strings.Contains(a.Header.Get("Cache-Control"), "immutable") {
		s.Errorf("%s has Cache-Control %q", url, a.Header.Get("Cache-Control"))
	}
	if tag := strings.Trim(a.Header.Get("ETag"), `"`); tag != hash {
		s.Errorf("%s has ETag %s", url, tag)
	}
	got := readSpec(s, client, n.FrontURL()+url)
	if missing := without(want, got.served(s)); len(missing) > 0 {
		s.Errorf("%s at the front of %s lacks %v", url, n.Name, missing)
	}
	// Whatever it refers to is there.
	for _, reference := range strings.Split(string(a.Body), `"#/components/schemas/`)[1:] {
		schema, _, _ := strings.Cut(reference, `"`)
		if _, ok := got.Components.Schemas[schema]; !ok {
			s.Errorf("%s refers to %s, which is not there", url, schema)
			break
		}
	}
	if b := s.Call(client, "GET", n.FrontURL()+path, "", nil); b.Status != 200 || !bytes.Equal(b.Body, a.Body) {
		s.Errorf("%s without its hash answered %d and %d bytes, want %d", path, b.Status, len(b.Body), len(a.Body))
	}
	if b := s.Call(client, "GET", n.FrontURL()+path+"?hash=OLD", "", nil); b.Status != 301 || b.Header.Get("Location") != url {
		s.Errorf("%s with an old hash answered %d, to %q", path, b.Status, b.Header.Get("Location"))
	}
	if b := s.Call(client, "GET", n.FrontURL()+url, "", http.Header{"If-None-Match": {a.Header.Get("ETag")}}); b.Status != 304 {
		s.Errorf("%s with its ETag answered %d", url, b.Status)
	}
	b := s.Call(client, "GET", n.FrontURL()+url, "", http.Header{"Accept": {openAPIv3Protobuf}})
	var document openapiv3.Document
	if err := proto.Unmarshal(b.Body, &document); err != nil || len(document.GetPaths().GetPath()) != len(got.Paths) {
		s.Errorf("%s as protobuf answered %d: %v", url, b.Status, err)
	}
}

func readSpec(s *suite.S, client *http.Client, url string) spec {
	s.Helper()
	a := s.Want(client, "GET", url, "", 200, "")
	var d spec
	if err := json.Unmarshal(a.Body, &d); err != nil {
		s.Fatalf("%s: %v", url, err)
	}
	return d
}
