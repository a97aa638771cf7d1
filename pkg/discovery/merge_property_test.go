package discovery

import (
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	apidiscoveryv2 "k8s.io/api/apidiscovery/v2"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"pgregory.net/rapid"
)

// tester is what testing.T and rapid.T have in common.
type tester interface {
	Helper()
	Errorf(format string, args ...any)
}

func copied(views []*View) []*View {
	out := make([]*View, len(views))
	for i, v := range views {
		if v != nil {
			list := apidiscoveryv2.APIGroupDiscoveryList{Items: v.Groups}
			out[i] = &View{Groups: list.DeepCopy().Items}
		}
	}
	return out
}

// holdLaws checks what is true of every merge, whatever the views are.
func holdLaws(t tester, views []*View) {
	t.Helper()
	before := copied(views)
	merged := Merge(views...)
	same := func(law string, other *View) {
		t.Helper()
		// cmp is for people: it is too slow to fuzz with.
		if !reflect.DeepEqual(merged, other) {
			t.Errorf("%s: %s", law, cmp.Diff(merged, other))
		}
	}
	same("idempotent", Merge(merged))
	same("repetition means nothing", Merge(slices.Concat(views, views)...))
	reverse := slices.Clone(views)
	slices.Reverse(reverse)
	same("independent of order", Merge(reverse...))
	if !Equal(merged, Merge(append(reverse, merged)...)) {
		t.Errorf("what was merged adds nothing")
	}
	if !reflect.DeepEqual(before, views) {
		t.Errorf("the views were changed: %s", cmp.Diff(before, views))
	}
	for _, v := range views {
		if v != nil {
			holdsAll(t, merged, v)
		}
	}
	if len(views) == 1 && views[0] != nil && !Equal(views[0], merged) {
		t.Errorf("one server differs from itself")
	}
	wellFormed(t, merged, views)
}

// holdsAll checks that a merged view has everything that a view has Current.
func holdsAll(t tester, merged, v *View) {
	t.Helper()
	for _, g := range v.Groups {
		for _, version := range g.Versions {
			gv := schema.GroupVersion{Group: g.Name, Version: version.Version}
			m := merged.Find(gv)
			if m == nil {
				t.Errorf("%s is lost", gv)
				continue
			}
			if version.Freshness == apidiscoveryv2.DiscoveryFreshnessStale {
				continue
			}
			if m.Freshness != apidiscoveryv2.DiscoveryFreshnessCurrent {
				t.Errorf("%s is %q", gv, m.Freshness)
			}
			for _, r := range version.Resources {
				i := slices.IndexFunc(m.Resources, func(o apidiscoveryv2.APIResourceDiscovery) bool { return o.Resource == r.Resource })
				if i < 0 || !includes(m.Resources[i].Verbs, r.Verbs) || !includes(m.Resources[i].ShortNames, r.ShortNames) || !includes(m.Resources[i].Categories, r.Categories) {
					t.Errorf("%s of %s or something of it is lost", r.Resource, gv)
					continue
				}
				for _, s := range r.Subresources {
					subs := m.Resources[i].Subresources
					j := slices.IndexFunc(subs, func(o apidiscoveryv2.APISubresourceDiscovery) bool { return o.Subresource == s.Subresource })
					if j < 0 || !includes(subs[j].Verbs, s.Verbs) || !includes(subs[j].AcceptedTypes, s.AcceptedTypes) {
						t.Errorf("%s/%s of %s or something of it is lost", r.Resource, s.Subresource, gv)
					}
				}
			}
		}
	}
}

func includes[E comparable](all, some []E) bool {
	return !slices.ContainsFunc(some, func(e E) bool { return !slices.Contains(all, e) })
}

// wellFormed checks what every client may rely on, and the order of all but groups.
func wellFormed(t tester, merged *View, views []*View) {
	t.Helper()
	for i, g := range merged.Groups {
		if g.Name == "" && i != 0 {
			t.Errorf("the core group is number %d", i)
		}
		preferred := map[string]bool{}
		for _, v := range views {
			if v == nil {
				continue
			}
			for _, o := range v.Groups {
				if o.Name == g.Name && len(o.Versions) > 0 {
					preferred[o.Versions[0].Version] = true
				}
			}
		}
		if len(preferred) == 1 && !preferred[g.Versions[0].Version] {
			t.Errorf("%s: all prefer another version than %s", g.Name, g.Versions[0].Version)
		}
		rest := g.Versions
		if len(preferred) == 1 {
			rest = rest[1:]
		}
		increasing(t, g.Name, rest, func(a, b apidiscoveryv2.APIVersionDiscovery) int { return -compareVersions(a.Version, b.Version) })
		for _, v := range g.Versions {
			increasing(t, g.Name, v.Resources, func(a, b apidiscoveryv2.APIResourceDiscovery) int { return strings.Compare(a.Resource, b.Resource) })
			for _, r := range v.Resources {
				increasing(t, r.Resource, r.Verbs, strings.Compare)
				increasing(t, r.Resource, r.ShortNames, strings.Compare)
				increasing(t, r.Resource, r.Categories, strings.Compare)
				increasing(t, r.Resource, r.Subresources, func(a, b apidiscoveryv2.APISubresourceDiscovery) int {
					return strings.Compare(a.Subresource, b.Subresource)
				})
				if r.ResponseKind == nil || r.Verbs == nil {
					t.Errorf("%s has no kind or verbs, which older clients can't read", r.Resource)
				}
				for _, s := range r.Subresources {
					increasing(t, s.Subresource, s.Verbs, strings.Compare)
					if s.ResponseKind == nil || s.Verbs == nil {
						t.Errorf("%s/%s has no kind or verbs, which older clients can't read", r.Resource, s.Subresource)
					}
				}
			}
		}
	}
}

func increasing[E any](t tester, what string, list []E, compare func(a, b E) int) {
	t.Helper()
	for i := 1; i < len(list); i++ {
		if compare(list[i-1], list[i]) >= 0 {
			t.Errorf("%s: %v is out of order", what, list)
		}
	}
}

func some[E comparable](of ...E) *rapid.Generator[[]E] {
	return rapid.SliceOfNDistinct(rapid.SampledFrom(of), 0, len(of), rapid.ID[E])
}

// anyView is anything that the parser may let through.
func anyView() *rapid.Generator[*View] {
	kind := rapid.SampledFrom([]*metav1.GroupVersionKind{nil, {}, {Kind: "A"}, {Group: "g", Version: "v1", Kind: "A"}, {Group: "g", Version: "v1beta1", Kind: "A"}, {Kind: "B"}})
	verbs := some("get", "list", "watch", "create")
	return rapid.Custom(func(t *rapid.T) *View {
		if rapid.IntRange(0, 9).Draw(t, "nil") == 0 {
			return nil
		}
		v := &View{}
		for _, name := range some("", "apps", "batch", "a.io", "z.io").Draw(t, "groups") {
			var g apidiscoveryv2.APIGroupDiscovery
			g.Name = name
			for _, name := range some("v1", "v2", "v1beta1", "v01", "foo").Draw(t, "versions") {
				version := apidiscoveryv2.APIVersionDiscovery{Version: name, Freshness: rapid.SampledFrom([]apidiscoveryv2.DiscoveryFreshness{"Current", "Current", "Stale", ""}).Draw(t, "freshness")}
				for _, name := range some("r", "s", "r.s").Draw(t, "resources") {
					r := apidiscoveryv2.APIResourceDiscovery{
						Resource: name, ResponseKind: kind.Draw(t, "kind"), Verbs: verbs.Draw(t, "verbs"),
						Scope:            rapid.SampledFrom([]apidiscoveryv2.ResourceScope{"Cluster", "Namespaced"}).Draw(t, "scope"),
						SingularResource: rapid.SampledFrom([]string{"", "one"}).Draw(t, "singular"),
						ShortNames:       some("x", "y").Draw(t, "shortNames"), Categories: some("all", "zoo").Draw(t, "categories"),
					}
					for _, name := range some("status", "scale").Draw(t, "subresources") {
						s := apidiscoveryv2.APISubresourceDiscovery{Subresource: name, ResponseKind: kind.Draw(t, "kind"), Verbs: verbs.Draw(t, "verbs")}
						if k := kind.Draw(t, "accepted"); k != nil {
							s.AcceptedTypes = append(s.AcceptedTypes, *k)
						}
						r.Subresources = append(r.Subresources, s)
					}
					version.Resources = append(version.Resources, r)
				}
				g.Versions = append(g.Versions, version)
			}
			v.Groups = append(v.Groups, g)
		}
		return v
	})
}

func TestEveryMergeHoldsTheLaws(t *testing.T) {
	views := rapid.SliceOfN(anyView(), 0, 4)
	rapid.Check(t, func(t *rapid.T) { holdLaws(t, views.Draw(t, "views")) })
}

// Of a server alone, Merge changes nothing but the order of what the server leaves unsorted.
func TestARealServersViewLosesNothing(t *testing.T) {
	v := recorded(t)
	merged := Merge(v)
	if !Equal(v, merged) || len(merged.Groups) != len(v.Groups) {
		t.Error("it differs from itself")
	}
	for i := range v.Groups {
		if v.Groups[i].Name == "example.test" {
			continue // the server does not sort the verbs of CRDs
		}
		if !reflect.DeepEqual(v.Groups[i], merged.Groups[i]) {
			t.Errorf("%s: %s", v.Groups[i].Name, cmp.Diff(v.Groups[i], merged.Groups[i]))
		}
	}
}

func TestTwoVersionsOfARealServerAreMergedByTheLaws(t *testing.T) {
	var views []*View
	for _, file := range []string{"testdata/documents/apis-1.36.3.json", "testdata/documents/apis-1.37.2.json"} {
		body, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		views = append(views, &View{Groups: parse(t, false, string(body)).groups})
	}
	holdLaws(t, views)
	merged := Merge(views...)
	holdLegacyLaws(t, merged)
	// All that is new in the newer one is storagemigration.k8s.io and resources: its order is that of both.
	for i, g := range views[1].Groups {
		if merged.Groups[i].Name != g.Name {
			t.Errorf("%s stands where %s should", merged.Groups[i].Name, g.Name)
		}
	}
}
