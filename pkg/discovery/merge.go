package discovery

import (
	"cmp"
	"maps"
	"reflect"
	"slices"
	"strings"

	apidiscoveryv2 "k8s.io/api/apidiscovery/v2"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/version"
)

// Merge unites views: groups, versions, resources, subresources, verbs. The result depends on what the views say only,
// not on their order or on how many say it; merging it again changes nothing; and it has everything of every version
// that some view has Current. nil views are skipped. The views stay as they are, but the result shares memory with
// them: like them it is a value.
func Merge(views ...*View) *View {
	groups := map[string][]*apidiscoveryv2.APIGroupDiscovery{}
	var orders [][]string
	var partial map[schema.GroupVersion]bool
	for _, v := range views {
		if v == nil {
			continue
		}
		partial = anyPartial(partial, v.Partial)
		order := make([]string, 0, len(v.Groups))
		for i := range v.Groups {
			g := &v.Groups[i]
			// Nothing is served in a group without versions, and what is not served is not listed.
			if len(g.Versions) == 0 {
				continue
			}
			groups[g.Name] = append(groups[g.Name], g)
			if g.Name != "" {
				order = append(order, g.Name)
			}
		}
		orders = append(orders, order)
	}

	merged := &View{Groups: make([]apidiscoveryv2.APIGroupDiscovery, 0, len(groups)), Partial: partial}
	if core := groups[""]; len(core) > 0 {
		merged.Groups = append(merged.Groups, mergeGroup(core))
	}
	for _, name := range mergeOrders(orders) {
		merged.Groups = append(merged.Groups, mergeGroup(groups[name]))
	}
	return merged
}

// anyPartial is nil if nothing is partial.
func anyPartial(a, b map[schema.GroupVersion]bool) map[schema.GroupVersion]bool {
	if len(a) == 0 {
		return b
	}
	out := maps.Clone(a)
	maps.Copy(out, b)
	return out
}

// Equal says that two views show the same, preferred versions included. In which order they list groups, resources,
// verbs and the like is no difference. A nil view shows nothing.
func Equal(a, b *View) bool {
	if a == b {
		return true
	}
	x, y := Merge(a), Merge(b)
	if len(x.Groups) != len(y.Groups) {
		return false
	}
	byName := func(a, b apidiscoveryv2.APIGroupDiscovery) int { return cmp.Compare(a.Name, b.Name) }
	slices.SortFunc(x.Groups, byName)
	slices.SortFunc(y.Groups, byName)
	return reflect.DeepEqual(x.Groups, y.Groups)
}

// mergeGroup unites what several views have of one group.
func mergeGroup(groups []*apidiscoveryv2.APIGroupDiscovery) apidiscoveryv2.APIGroupDiscovery {
	versions := map[string][]*apidiscoveryv2.APIVersionDiscovery{}
	for _, g := range groups {
		for i := range g.Versions {
			v := &g.Versions[i]
			versions[v.Version] = append(versions[v.Version], v)
		}
	}
	order := slices.SortedFunc(maps.Keys(versions), func(a, b string) int { return -compareVersions(a, b) })
	if preferred, agreed := preferredVersion(groups); agreed {
		i := slices.Index(order, preferred)
		order = slices.Insert(slices.Delete(order, i, i+1), 0, preferred)
	}

	var merged apidiscoveryv2.APIGroupDiscovery
	merged.Name = groups[0].Name
	merged.Versions = make([]apidiscoveryv2.APIVersionDiscovery, 0, len(order))
	for _, name := range order {
		merged.Versions = append(merged.Versions, mergeVersion(versions[name]))
	}
	return merged
}

// preferredVersion is the one that all views list first, if there is such a one. A server's own order may differ from
// apimachinery's, since APIServices have priorities.
func preferredVersion(groups []*apidiscoveryv2.APIGroupDiscovery) (string, bool) {
	preferred := groups[0].Versions[0].Version
	for _, g := range groups[1:] {
		if g.Versions[0].Version != preferred {
			return "", false
		}
	}
	return preferred, true
}

// compareVersions is positive if a stands before b in apimachinery's order, which takes v1 and v01 for one.
func compareVersions(a, b string) int {
	return cmp.Or(version.CompareKubeAwareVersionStrings(a, b), strings.Compare(b, a))
}

// mergeVersion unites what several views have of one version. What a server knows only as Stale counts for nothing
// beside what another knows: resources that were removed meanwhile would come back.
func mergeVersion(versions []*apidiscoveryv2.APIVersionDiscovery) apidiscoveryv2.APIVersionDiscovery {
	merged := apidiscoveryv2.APIVersionDiscovery{
		Version:   versions[0].Version,
		Freshness: apidiscoveryv2.DiscoveryFreshnessCurrent,
	}
	known := slices.DeleteFunc(slices.Clone(versions), func(v *apidiscoveryv2.APIVersionDiscovery) bool {
		return v.Freshness == apidiscoveryv2.DiscoveryFreshnessStale
	})
	if len(known) == 0 {
		known, merged.Freshness = versions, apidiscoveryv2.DiscoveryFreshnessStale
	}
	merged.Resources = mergeByName(known,
		func(v *apidiscoveryv2.APIVersionDiscovery) []apidiscoveryv2.APIResourceDiscovery { return v.Resources },
		func(r *apidiscoveryv2.APIResourceDiscovery) string { return r.Resource },
		mergeResource)
	return merged
}
