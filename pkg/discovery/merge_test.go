package discovery

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	apidiscoveryv2 "k8s.io/api/apidiscovery/v2"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// view makes a view out of words: see groups. A word that begins with ~ makes its version Stale.
func view(list string) *View {
	v := &View{}
	for w := range strings.FieldsSeq(list) {
		name, stale := strings.CutPrefix(w, "~")
		for _, g := range groups(name) {
			i := slices.IndexFunc(v.Groups, func(h apidiscoveryv2.APIGroupDiscovery) bool { return h.Name == g.Name })
			if i < 0 {
				i = len(v.Groups)
				v.Groups = append(v.Groups, apidiscoveryv2.APIGroupDiscovery{})
				v.Groups[i].Name = g.Name
			}
			versions := &v.Groups[i].Versions
			n := len(*versions)
			if n == 0 || (*versions)[n-1].Version != g.Versions[0].Version {
				*versions, n = append(*versions, g.Versions[0]), n+1
			} else {
				(*versions)[n-1].Resources = append((*versions)[n-1].Resources, g.Versions[0].Resources...)
			}
			if stale {
				(*versions)[n-1].Freshness = apidiscoveryv2.DiscoveryFreshnessStale
			}
		}
	}
	return v
}

// said is the reverse of view.
func said(v *View) string {
	var out []string
	for _, g := range v.Groups {
		for _, version := range g.Versions {
			mark := ""
			if version.Freshness == apidiscoveryv2.DiscoveryFreshnessStale {
				mark = "~"
			}
			for _, r := range version.Resources {
				w := mark + g.Name + "/" + version.Version + "/" + r.Resource
				for _, s := range r.Subresources {
					w += "/" + s.Subresource
				}
				out = append(out, w)
			}
		}
	}
	return strings.Join(out, " ")
}

func TestViewsAreUnited(t *testing.T) {
	for _, c := range []struct {
		what  string
		views []string
		want  string
	}{
		{"one view is itself", []string{"/v1/pods apps/v1/deployments"}, "/v1/pods apps/v1/deployments"},
		{"a group of one server", []string{"apps/v1/a", "apps/v1/a new/v1/b"}, "apps/v1/a new/v1/b"},
		{"a version of one server", []string{"g/v1/a", "g/v2/a"}, "g/v2/a g/v1/a"},
		{"a resource of one server", []string{"g/v1/a g/v1/c", "g/v1/b"}, "g/v1/a g/v1/b g/v1/c"},
		{"a subresource of one server", []string{"g/v1/a/status", "g/v1/a/scale"}, "g/v1/a/scale/status"},
		{"a resource that one server has as a parent only", []string{"g/v1/a", "g/v1/a/x"}, "g/v1/a/x"},
		{"differences in both directions", []string{"old/v1/a both/v1/b", "both/v1/b new/v1/c"}, "old/v1/a both/v1/b new/v1/c"},

		{"groups are in the order of the servers", []string{"z/v1/r m/v1/r", "m/v1/r a/v1/r"}, "z/v1/r m/v1/r a/v1/r"},
		{"the core group is first", []string{"z/v1/r /v1/pods", "a/v1/r"}, "/v1/pods a/v1/r z/v1/r"},
		{"resources are in the order of their names", []string{"g/v1/z g/v1/a"}, "g/v1/a g/v1/z"},

		{"versions are in apimachinery's order where servers prefer others",
			[]string{"g/v1beta1/r g/foo/r", "g/v1alpha1/r", "g/v11/r g/v2/r"}, "g/v11/r g/v2/r g/v1beta1/r g/v1alpha1/r g/foo/r"},
		{"a version that all prefer stays first", []string{"g/v1/r g/v2/r", "g/v1/r g/v3/r"}, "g/v1/r g/v3/r g/v2/r"},
		{"also if only one has the group", []string{"g/v1/r g/v2/r g/v3/r", "h/v1/r"}, "g/v1/r g/v3/r g/v2/r h/v1/r"},
		{"versions that apimachinery takes for one", []string{"g/v2/r g/v01/r", "g/v2/r g/v1/r"}, "g/v2/r g/v01/r g/v1/r"},

		{"Current beats Stale", []string{"~g/v1/gone", "g/v1/r"}, "g/v1/r"},
		{"what only Stale versions have stays Stale", []string{"~g/v1/a", "~g/v1/b"}, "~g/v1/a ~g/v1/b"},
		{"another version is no help", []string{"~g/v1/a g/v2/a", "~g/v1/a g/v2/a"}, "~g/v1/a g/v2/a"},
	} {
		var views, reverse []*View
		for _, v := range c.views {
			views = append(views, view(v))
		}
		for _, v := range slices.Backward(views) {
			reverse = append(reverse, v, nil, v)
		}
		if got := said(Merge(views...)); got != c.want {
			t.Errorf("%s: %s", c.what, got)
		}
		if got := said(Merge(reverse...)); got != c.want {
			t.Errorf("%s, the other way round: %s", c.what, got)
		}
	}
}

func TestAStaleVersionWithoutResourcesIsListedToo(t *testing.T) {
	a := &View{Groups: groups("g/v1/r")}
	a.Groups[0].Versions[0] = apidiscoveryv2.APIVersionDiscovery{Version: "v1", Freshness: apidiscoveryv2.DiscoveryFreshnessStale}
	if d := cmp.Diff(a, Merge(a, nil)); d != "" {
		t.Error(d)
	}
	if got := said(Merge(a, view("g/v1/r"))); got != "g/v1/r" {
		t.Error(got)
	}
}

func TestNobodyServesNothing(t *testing.T) {
	empty := &View{Groups: []apidiscoveryv2.APIGroupDiscovery{{ObjectMeta: metav1.ObjectMeta{Name: "g"}}}}
	for _, v := range []*View{Merge(), Merge(nil), Merge(&View{}), Merge(empty, nil)} {
		if v == nil || len(v.Groups) != 0 {
			t.Errorf("%+v", v)
		}
	}
}

// only is the one resource of a view.
func only(v *View) *apidiscoveryv2.APIResourceDiscovery { return &v.Groups[0].Versions[0].Resources[0] }

func TestOfOneResourceEverythingIsUnited(t *testing.T) {
	a, b := view("g/v1/r/s"), view("g/v1/r/s")
	x, y := only(a), only(b)
	x.Verbs, y.Verbs = []string{"watch", "get"}, []string{"list", "get"}
	x.ShortNames, y.ShortNames = []string{"rr", "r"}, []string{"r"}
	x.Categories = []string{"all"}
	x.Subresources[0].Verbs, y.Subresources[0].Verbs = []string{"update", "get"}, []string{"patch"}
	x.Subresources[0].AcceptedTypes = []metav1.GroupVersionKind{*gvk("p", "v1", "E")}
	y.Subresources[0].AcceptedTypes = []metav1.GroupVersionKind{*gvk("p", "v1beta1", "E"), *gvk("p", "v1", "E")}

	want := apidiscoveryv2.APIResourceDiscovery{
		Resource: "r", Scope: apidiscoveryv2.ScopeNamespace, ResponseKind: gvk("", "", ""),
		Verbs: []string{"get", "list", "watch"}, ShortNames: []string{"r", "rr"}, Categories: []string{"all"},
		Subresources: []apidiscoveryv2.APISubresourceDiscovery{{
			Subresource: "s", ResponseKind: gvk("", "", ""), Verbs: []string{"get", "patch", "update"},
			AcceptedTypes: []metav1.GroupVersionKind{*gvk("p", "v1beta1", "E"), *gvk("p", "v1", "E")},
		}},
	}
	for _, m := range []*View{Merge(a, b), Merge(b, a)} {
		if d := cmp.Diff(want, *only(m)); d != "" {
			t.Error(d)
		}
	}
}

func TestServersThatContradictEachOtherAreBelievedOneByOne(t *testing.T) {
	type resource = apidiscoveryv2.APIResourceDiscovery
	for _, c := range []struct {
		what          string
		one, two, won resource
	}{
		{"who knows the kind knows the resource",
			resource{Scope: "Namespaced", SingularResource: "z"},
			resource{Scope: "Cluster", ResponseKind: gvk("", "", "K")},
			resource{Scope: "Cluster", ResponseKind: gvk("", "", "K")}},
		{"the newer version of a kind",
			resource{ResponseKind: gvk("policy", "v1beta1", "Eviction"), SingularResource: "z"},
			resource{ResponseKind: gvk("policy", "v1", "Eviction")},
			resource{ResponseKind: gvk("policy", "v1", "Eviction")}},
		{"a singular name is more than none",
			resource{ResponseKind: gvk("", "", "K")},
			resource{ResponseKind: gvk("", "", "K"), SingularResource: "k"},
			resource{ResponseKind: gvk("", "", "K"), SingularResource: "k"}},
		{"the scope alone",
			resource{ResponseKind: gvk("", "", "K"), Scope: "Cluster"},
			resource{ResponseKind: gvk("", "", "K"), Scope: "Namespaced"},
			resource{ResponseKind: gvk("", "", "K"), Scope: "Namespaced"}},
	} {
		a, b, want := view("g/v1/r"), view("g/v1/r"), c.won
		for r, v := range map[*resource]*View{&c.one: a, &c.two: b, &want: nil} {
			r.Resource, r.Verbs = "r", []string{"get"}
			if v != nil {
				*only(v) = *r
			}
		}
		for _, m := range []*View{Merge(a, b), Merge(b, a)} {
			if d := cmp.Diff(want, *only(m)); d != "" {
				t.Errorf("%s: %s", c.what, d)
			}
		}
	}
}

func TestViewsAreEqualIfTheyShowTheSame(t *testing.T) {
	verbs := view("g/v1/r")
	only(verbs).Verbs = []string{"get", "list"}
	reverse := view("g/v1/r")
	only(reverse).Verbs = []string{"list", "get"}
	kind := view("g/v1/r")
	only(kind).ResponseKind = gvk("", "", "")
	scope := view("g/v1/r")
	only(scope).Scope = apidiscoveryv2.ScopeCluster
	for _, c := range []struct {
		what string
		a, b *View
		want bool
	}{
		{"itself", view("/v1/pods g/v1/r"), view("/v1/pods g/v1/r"), true},
		{"none and empty", nil, &View{}, true},
		{"none and something", nil, view("g/v1/r"), false},
		{"the order of groups", view("g/v1/r h/v1/r"), view("h/v1/r g/v1/r"), true},
		{"the order of resources", view("g/v1/r g/v1/s"), view("g/v1/s g/v1/r"), true},
		{"the order of verbs", verbs, reverse, true},
		{"the order of versions after the preferred one", view("g/v3/r g/v1/r g/v2/r"), view("g/v3/r g/v2/r g/v1/r"), true},
		{"the preferred version", view("g/v1/r g/v2/r"), view("g/v2/r g/v1/r"), false},
		{"a kind that is not said", kind, view("g/v1/r"), true},
		{"a group", view("g/v1/r"), view("g/v1/r h/v1/r"), false},
		{"a group's name", view("g/v1/r"), view("h/v1/r"), false},
		{"a version", view("g/v2/r"), view("g/v2/r g/v1/r"), false},
		{"a resource", view("g/v1/r"), view("g/v1/r g/v1/s"), false},
		{"a subresource", view("g/v1/r"), view("g/v1/r/s"), false},
		{"a verb", view("g/v1/r"), verbs, false},
		{"a scope", view("g/v1/r"), scope, false},
		{"freshness", view("g/v1/r"), view("~g/v1/r"), false},
	} {
		if got := Equal(c.a, c.b); got != c.want {
			t.Errorf("%s: equal is %v", c.what, got)
		}
		if got := Equal(c.b, c.a); got != c.want {
			t.Errorf("%s, the other way round: equal is %v", c.what, got)
		}
	}
}

func TestAVersionIsFound(t *testing.T) {
	v := view("/v1/pods g/v1/a g/v2/b")
	for gv, want := range map[schema.GroupVersion]string{{Version: "v1"}: "pods", {Group: "g", Version: "v2"}: "b"} {
		if found := v.Find(gv); found == nil || found.Resources[0].Resource != want {
			t.Errorf("%s: %+v", gv, found)
		}
	}
	for _, gv := range []schema.GroupVersion{{}, {Version: "v2"}, {Group: "g", Version: "v3"}, {Group: "h", Version: "v1"}} {
		if found := v.Find(gv); found != nil {
			t.Errorf("%s: %+v", gv, found)
		}
	}
}
