package discovery

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	apidiscoveryv2 "k8s.io/api/apidiscovery/v2"
	"k8s.io/apiserver/pkg/endpoints/discovery/aggregated"
	"pgregory.net/rapid"
)

// serversOfOneCluster draws views on which the apiserver's own merge has an opinion. It has none (it goes by the names
// of servers, or sorts everything, or keeps what it saw first) where groups contradict each other in their order, where
// a resource is described differently, where resources or versions are listed in another order than here, on
// subresources that differ, and on Stale versions.
func serversOfOneCluster() *rapid.Generator[[]*View] {
	return rapid.Custom(func(t *rapid.T) []*View {
		views := make([]*View, rapid.IntRange(2, 4).Draw(t, "servers"))
		for i := range views {
			views[i] = view("/v1/pods")
			only(views[i]).ResponseKind = gvk("", "", "Pod")
		}
		has := func() bool { return rapid.IntRange(0, 3).Draw(t, "has") > 0 }
		for _, name := range rapid.Permutation([]string{"apps", "batch", "a.io", "z.io"}).Draw(t, "groups") {
			for i := range views {
				var g apidiscoveryv2.APIGroupDiscovery
				g.Name = name
				for _, name := range []string{"v2", "v1", "v1beta1"} {
					version := apidiscoveryv2.APIVersionDiscovery{Version: name, Freshness: apidiscoveryv2.DiscoveryFreshnessCurrent}
					for _, name := range []string{"a", "b", "c"} {
						if !has() {
							continue
						}
						r := groups("g/v1/" + name)[0].Versions[0].Resources[0]
						r.ResponseKind, r.Verbs = gvk("", "", strings.ToUpper(name)), some("get", "list", "watch").Draw(t, "verbs")
						for _, name := range []string{"scale", "status"} {
							if has() {
								r.Subresources = append(r.Subresources, apidiscoveryv2.APISubresourceDiscovery{Subresource: name, ResponseKind: gvk("", "", name), Verbs: []string{"get"}})
							}
						}
						version.Resources = append(version.Resources, r)
					}
					if has() {
						g.Versions = append(g.Versions, version)
					}
				}
				if len(g.Versions) > 0 {
					views[i].Groups = append(views[i].Groups, g)
				}
			}
		}
		return views
	})
}

func TestTheMergeAgreesWithTheApiserversOwn(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		views := serversOfOneCluster().Draw(t, "views")
		peers := map[string][]apidiscoveryv2.APIGroupDiscovery{}
		for i, v := range copied(views)[1:] {
			peers[string(rune('b'+i))] = v.Groups
		}
		theirs := aggregated.TestMergeResources("a", copied(views)[0].Groups, peers)
		ours := Merge(views...).Groups

		// Verbs that only one server has it leaves as they are. Versions that no server compares it sorts by name.
		for i := range theirs {
			agreed := i < len(ours) && agreePreferred(views, ours[i].Name)
			if agreed && theirs[i].Versions[0].Version != ours[i].Versions[0].Version {
				t.Errorf("%s: another version is preferred", ours[i].Name)
			}
			for j := range theirs[i].Versions {
				for k := range theirs[i].Versions[j].Resources {
					r := &theirs[i].Versions[j].Resources[k]
					r.Verbs = append([]string{}, r.Verbs...)
					slices.Sort(r.Verbs)
				}
			}
			byName := func(a, b apidiscoveryv2.APIVersionDiscovery) int { return strings.Compare(a.Version, b.Version) }
			slices.SortFunc(theirs[i].Versions, byName)
			if i < len(ours) {
				slices.SortFunc(ours[i].Versions, byName)
			}
		}
		if d := cmp.Diff(theirs, ours); d != "" {
			t.Errorf("the apiserver merges (-) what becomes (+): %s", d)
		}
	})
}

func agreePreferred(views []*View, group string) bool {
	var first []string
	for _, v := range views {
		if g := v.find(group); g != nil {
			first = append(first, g.Versions[0].Version)
		}
	}
	slices.Sort(first)
	return len(slices.Compact(first)) == 1
}
