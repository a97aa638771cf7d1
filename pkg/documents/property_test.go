package documents

import (
	"encoding/json"
	"maps"
	"net/http"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	apidiscoveryv2 "k8s.io/api/apidiscovery/v2"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"

	"xds-server/pkg/discovery"
)

// servers draws some that serve some of the same few APIs, each in its own order, and that list more.
func servers() *rapid.Generator[[]discovery.Observation] {
	return rapid.Custom(func(t *rapid.T) []discovery.Observation {
		var out []discovery.Observation
		for i := range rapid.IntRange(1, 4).Draw(t, "servers") {
			groups := []apidiscoveryv2.APIGroupDiscovery{core()}
			names := rapid.Permutation([]string{"a.test", "b.test", "c.test"}).Draw(t, "groups")
			for _, name := range names[:rapid.IntRange(0, 3).Draw(t, "count")] {
				g := group(name)
				versions := rapid.Permutation([]string{"v1", "v1beta1", "v2"}).Draw(t, "versions")
				for _, v := range versions[:rapid.IntRange(1, 3).Draw(t, "count")] {
					if rapid.IntRange(0, 9).Draw(t, "stale") == 0 {
						g.Versions = append(g.Versions, stale(name, v).Versions...)
						continue
					}
					kinds := rapid.Permutation([]string{"Gadget", "Thing", "Widget"}).Draw(t, "kinds")
					g.Versions = append(g.Versions, version(gv(name, v), kinds[:rapid.IntRange(0, 3).Draw(t, "count")]...))
				}
				groups = append(groups, g)
			}
			o := server(string(rune('a'+i)), groups...)
			if rapid.Bool().Draw(t, "lists more") {
				o = lists(o, "b.test", "listed.test")
			}
			for _, hashes := range o.Documents.StorageVersionHashes {
				for resource := range hashes {
					hashes[resource] += rapid.SampledFrom([]string{"", "-new"}).Draw(t, "hash")
				}
			}
			out = append(out, o)
		}
		return out
	})
}

func find[T any](t *rapid.T, s *Set, path string, headers ...header) (out T) {
	h, verdict := s.Find(path)
	if verdict != Merged {
		t.Fatalf("%s is %v", path, verdict)
	}
	w := serve(h, newRequest(http.MethodGet, path, headers...))
	if err := json.NewDecoder(w.Body).Decode(&out); err != nil {
		t.Fatalf("%s: %v", path, err)
	}
	return out
}

// Whichever form a client reads, it finds the same groups, versions in the same order, and resources.
func TestAllFormsNameTheSameResources(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := Compile(servers().Draw(t, "servers"), rapid.Bool().Draw(t, "complete"))
		var aggregated, old []string
		for _, path := range []string{"/api", "/apis"} {
			aggregated = append(aggregated, namesOf(find[apidiscoveryv2.APIGroupDiscoveryList](t, s, path, accept(asV2)))...)
			old = append(old, namesOf(find[apidiscoveryv2.APIGroupDiscoveryList](t, s, path, accept(asV2Beta1)))...)
		}
		if diff := cmp.Diff(aggregated, old); diff != "" {
			t.Errorf("v2beta1 (-v2 +v2beta1):\n%s", diff)
		}

		var legacy []string
		for _, v := range find[metav1.APIVersions](t, s, "/api").Versions {
			legacy = append(legacy, legacyNames(t, s, "/api/"+v, v)...)
		}
		for _, g := range find[metav1.APIGroupList](t, s, "/apis").Groups {
			own := find[metav1.APIGroup](t, s, "/apis/"+g.Name)
			own.TypeMeta = metav1.TypeMeta{}
			if diff := cmp.Diff(g, own); diff != "" || g.PreferredVersion != g.Versions[0] {
				t.Errorf("/apis/%s (-in the list +itself):\n%s", g.Name, diff)
			}
			for _, v := range g.Versions {
				legacy = append(legacy, legacyNames(t, s, "/apis/"+v.GroupVersion, v.GroupVersion)...)
			}
		}
		if diff := cmp.Diff(aggregated, legacy); diff != "" {
			t.Errorf("legacy (-aggregated +legacy):\n%s", diff)
		}
	})
}

// namesOf are a document's versions in order, each with its sorted resources and subresources.
func namesOf(list apidiscoveryv2.APIGroupDiscoveryList) (names []string) {
	for _, g := range list.Items {
		for _, v := range g.Versions {
			of := gv(g.Name, v.Version).String()
			names = append(names, of)
			var resources []string
			for _, r := range v.Resources {
				resources = append(resources, of+" "+r.Resource)
				for _, sub := range r.Subresources {
					resources = append(resources, of+" "+r.Resource+"/"+sub.Subresource)
				}
			}
			slices.Sort(resources)
			names = append(names, resources...)
		}
	}
	return names
}

func legacyNames(t *rapid.T, s *Set, path, of string) []string {
	names := []string{of}
	if _, verdict := s.Find(path); verdict == Unread {
		return names // Stale: no resource is known
	}
	list := find[metav1.APIResourceList](t, s, path)
	if list.GroupVersion != of {
		t.Errorf("%s: %s", path, list.GroupVersion)
	}
	for _, r := range list.APIResources {
		names = append(names, of+" "+r.Name)
	}
	slices.Sort(names[1:])
	return names
}

// Replicas learn of the servers in any order, and give the same to the byte.
func TestNoOrderOfServersChangesAByte(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		observations := servers().Draw(t, "servers")
		complete := rapid.Bool().Draw(t, "complete")
		// Names are nothing that a document depends on, but for the addresses that the test makes of them.
		shuffled := rapid.Permutation(observations).Draw(t, "another order")
		for i := range shuffled {
			shuffled[i].Server.Name = string(rune('z' - i))
		}
		a, b := Compile(observations, complete), Compile(shuffled, complete)
		if !slices.Equal(slices.Sorted(maps.Keys(a.pages)), slices.Sorted(maps.Keys(b.pages))) {
			t.Fatal("other documents")
		}
		if a.Differ() != b.Differ() {
			t.Error("one differs, the other does not")
		}
		for path, p := range a.pages {
			if q := b.pages[path]; p.verdict != q.verdict {
				t.Errorf("%s is %v and %v", path, p.verdict, q.verdict)
			}
			for _, as := range []string{asV2, asProto, "application/yaml"} {
				x, _ := a.Find(path)
				y, _ := b.Find(path)
				if x == nil {
					continue
				}
				one := serve(x, newRequest(http.MethodGet, path, accept(as)))
				two := serve(y, newRequest(http.MethodGet, path, accept(as)))
				if one.Header.Get("ETag") != two.Header.Get("ETag") {
					t.Errorf("%s as %s: two ETags", path, as)
				}
			}
		}
	})
}

// The filter may leave the path only if clients see no difference: then no server's view shows what the others' don't.
func TestServersThatDoNotDifferShowTheMerged(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		observations := servers().Draw(t, "servers")
		all := Compile(observations, true)
		if all.Differ() {
			return
		}
		for _, o := range observations {
			alone := Compile([]discovery.Observation{o}, true)
			for _, path := range []string{"/api", "/apis"} {
				x := find[apidiscoveryv2.APIGroupDiscoveryList](t, alone, path, accept(asV2))
				y := find[apidiscoveryv2.APIGroupDiscoveryList](t, all, path, accept(asV2))
				one, two := namesOf(x), namesOf(y)
				slices.Sort(one)
				slices.Sort(two)
				if diff := cmp.Diff(one, two); diff != "" {
					t.Errorf("%s (-alone +merged):\n%s", path, diff)
				}
			}
		}
	})
}
