package documents

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"testing"

	apidiscoveryv2 "k8s.io/api/apidiscovery/v2"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"xds-server/pkg/discovery"
	"xds-server/pkg/peers"
)

const (
	asV2      = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"
	asV2Beta1 = "application/json;g=apidiscovery.k8s.io;v=v2beta1;as=APIGroupDiscoveryList"
	asProto   = "application/vnd.kubernetes.protobuf;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"
	asYAML    = "application/yaml;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"
)

// resource is a namespaced one with a status, which can be read.
func resource(gv schema.GroupVersion, kind, plural string) apidiscoveryv2.APIResourceDiscovery {
	responseKind := &metav1.GroupVersionKind{Group: gv.Group, Version: gv.Version, Kind: kind}
	return apidiscoveryv2.APIResourceDiscovery{
		Resource:         plural,
		ResponseKind:     responseKind,
		Scope:            apidiscoveryv2.ScopeNamespace,
		SingularResource: plural[:len(plural)-1],
		Verbs:            []string{"get", "list"},
		Subresources: []apidiscoveryv2.APISubresourceDiscovery{
			{Subresource: "status", ResponseKind: responseKind, Verbs: []string{"get"}},
		},
	}
}

func version(gv schema.GroupVersion, resources ...string) apidiscoveryv2.APIVersionDiscovery {
	v := apidiscoveryv2.APIVersionDiscovery{Version: gv.Version, Freshness: apidiscoveryv2.DiscoveryFreshnessCurrent}
	for _, kind := range resources {
		v.Resources = append(v.Resources, resource(gv, kind, string(kind[0]|0x20)+kind[1:]+"s"))
	}
	return v
}

func group(name string, versions ...apidiscoveryv2.APIVersionDiscovery) apidiscoveryv2.APIGroupDiscovery {
	return apidiscoveryv2.APIGroupDiscovery{ObjectMeta: metav1.ObjectMeta{Name: name}, Versions: versions}
}

func gv(group, version string) schema.GroupVersion {
	return schema.GroupVersion{Group: group, Version: version}
}

func core() apidiscoveryv2.APIGroupDiscovery { return group("", version(gv("", "v1"), "Pod")) }
func apps(kinds ...string) apidiscoveryv2.APIGroupDiscovery {
	return group("apps", version(gv("apps", "v1"), kinds...))
}

// server is a healthy server that shows these groups in all its documents.
func server(name string, groups ...apidiscoveryv2.APIGroupDiscovery) discovery.Observation {
	documents := &discovery.Documents{
		Addresses:            []metav1.ServerAddressByClientCIDR{{ClientCIDR: "0.0.0.0/0", ServerAddress: name + ":6443"}},
		StorageVersionHashes: map[schema.GroupVersion]map[string]string{},
	}
	for _, g := range groups {
		for _, v := range g.Versions {
			if g.Name != "" {
				documents.Listed = append(documents.Listed, gv(g.Name, v.Version))
			}
			hashes := map[string]string{}
			for _, r := range v.Resources {
				hashes[r.Resource] = "hash-of-" + r.Resource
			}
			documents.StorageVersionHashes[gv(g.Name, v.Version)] = hashes
		}
	}
	return discovery.Observation{
		Server:    peers.Server{Name: name},
		Ready:     true,
		View:      &discovery.View{Groups: groups},
		Documents: documents,
		ETags:     map[string]string{"/api": `"` + name + `-api"`, "/apis": `"` + name + `-apis"`},
	}
}

// recorded is a real kube-apiserver 1.37.2 with one CRD.
func recorded(t testing.TB) *discovery.View {
	t.Helper()
	view := &discovery.View{}
	for _, name := range []string{"api", "apis"} {
		body, err := os.ReadFile("../discovery/testdata/merge/" + name + "-1.37.2.json")
		if err != nil {
			t.Fatal(err)
		}
		var list apidiscoveryv2.APIGroupDiscoveryList
		if err := json.Unmarshal(body, &list); err != nil {
			t.Fatal(err)
		}
		view.Groups = append(view.Groups, list.Items...)
	}
	return view
}

// large is a view whose documents are above the size from which they are compressed.
func large() *discovery.View {
	groups := []apidiscoveryv2.APIGroupDiscovery{core()}
	v := apidiscoveryv2.APIVersionDiscovery{Version: "v1", Freshness: apidiscoveryv2.DiscoveryFreshnessCurrent}
	for i := range 700 {
		name := fmt.Sprintf("Widget%03d", i)
		v.Resources = append(v.Resources, resource(gv("large.test", "v1"), name, "widget"+name[6:]+"s"))
	}
	return discovery.Merge(&discovery.View{Groups: append(groups, group("large.test", v))})
}

// header is one header of a request.
type header struct{ name, value string }

func accept(value string) header { return header{"Accept", value} }

func newRequest(method, target string, headers ...header) *http.Request {
	req := httptest.NewRequest(method, target, nil)
	for _, h := range headers {
		req.Header.Add(h.name, h.value)
	}
	return req
}

func serve(h http.Handler, req *http.Request) *http.Response {
	w := httptest.NewRecorder()
	h.ServeHTTP(w, req)
	return w.Result()
}

// get asks for a document that has to be Merged.
func get(t testing.TB, s *Set, target string, headers ...header) *http.Response {
	t.Helper()
	req := newRequest(http.MethodGet, target, headers...)
	h, verdict := s.Find(req.URL.Path)
	if verdict != Merged {
		t.Fatalf("%s is %v, want merged", target, verdict)
	}
	return serve(h, req)
}

// body returns what a client reads in the end.
func body(t testing.TB, res *http.Response) []byte {
	t.Helper()
	var r io.Reader = res.Body
	if res.Header.Get("Content-Encoding") == "gzip" {
		unzipped, err := gzip.NewReader(res.Body)
		if err != nil {
			t.Fatal(err)
		}
		r = unzipped
	}
	b, err := io.ReadAll(r)
	if err != nil {
		t.Fatal(err)
	}
	return bytes.Clone(b)
}

func decode[T any](t testing.TB, res *http.Response) T {
	t.Helper()
	var out T
	b := body(t, res)
	if res.StatusCode != http.StatusOK {
		t.Fatalf("%d: %.200s", res.StatusCode, b)
	}
	if err := json.Unmarshal(b, &out); err != nil {
		t.Fatalf("%v: %.200s", err, b)
	}
	return out
}
