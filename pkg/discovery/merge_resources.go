package discovery

import (
	"cmp"
	"slices"
	"strings"

	apidiscoveryv2 "k8s.io/api/apidiscovery/v2"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// mergeByName sorts by name what several owners have in their lists, and makes one out of all that have the same name.
// It is nil if there is nothing.
func mergeByName[O, E any](owners []*O, list func(*O) []E, name func(*E) string, merge func([]*E) E) []E {
	size := 0
	for _, o := range owners {
		size += len(list(o))
	}
	if size == 0 {
		return nil
	}
	all := make([]*E, 0, size)
	for _, o := range owners {
		l := list(o)
		for i := range l {
			all = append(all, &l[i])
		}
	}
	slices.SortFunc(all, func(a, b *E) int { return strings.Compare(name(a), name(b)) })

	merged := make([]E, 0, size/len(owners)+1)
	for len(all) > 0 {
		n := 1
		for n < len(all) && name(all[n]) == name(all[0]) {
			n++
		}
		merged = append(merged, merge(all[:n]))
		all = all[n:]
	}
	return merged
}

// mergeResource unites what several views say of one resource. Where they contradict each other (its kind, scope or
// singular name), one of them is believed in all of it, since half of one and half of another may be true nowhere.
func mergeResource(resources []*apidiscoveryv2.APIResourceDiscovery) apidiscoveryv2.APIResourceDiscovery {
	merged := *slices.MaxFunc(resources, func(a, b *apidiscoveryv2.APIResourceDiscovery) int {
		return cmp.Or(
			compareKinds(a.ResponseKind, b.ResponseKind),
			cmp.Compare(a.SingularResource, b.SingularResource),
			cmp.Compare(a.Scope, b.Scope),
		)
	})
	merged.ResponseKind = orEmpty(merged.ResponseKind)
	merged.Verbs = mergeVerbs(resources, func(r *apidiscoveryv2.APIResourceDiscovery) []string { return r.Verbs })
	merged.ShortNames = mergeSets(resources, func(r *apidiscoveryv2.APIResourceDiscovery) []string { return r.ShortNames }, strings.Compare)
	merged.Categories = mergeSets(resources, func(r *apidiscoveryv2.APIResourceDiscovery) []string { return r.Categories }, strings.Compare)
	merged.Subresources = mergeByName(resources,
		func(r *apidiscoveryv2.APIResourceDiscovery) []apidiscoveryv2.APISubresourceDiscovery {
			return r.Subresources
		},
		func(s *apidiscoveryv2.APISubresourceDiscovery) string { return s.Subresource },
		mergeSubresource)
	return merged
}

func mergeSubresource(subresources []*apidiscoveryv2.APISubresourceDiscovery) apidiscoveryv2.APISubresourceDiscovery {
	merged := *slices.MaxFunc(subresources, func(a, b *apidiscoveryv2.APISubresourceDiscovery) int {
		return compareKinds(a.ResponseKind, b.ResponseKind)
	})
	merged.ResponseKind = orEmpty(merged.ResponseKind)
	merged.Verbs = mergeVerbs(subresources, func(s *apidiscoveryv2.APISubresourceDiscovery) []string { return s.Verbs })
	merged.AcceptedTypes = mergeSets(subresources,
		func(s *apidiscoveryv2.APISubresourceDiscovery) []metav1.GroupVersionKind { return s.AcceptedTypes },
		func(a, b metav1.GroupVersionKind) int { return compareKinds(&a, &b) })
	return merged
}

// mergeSets unites the sets that several owners have, sorted; nil if they are all empty.
func mergeSets[O any, E comparable](owners []*O, set func(*O) []E, compare func(a, b E) int) []E {
	var all []E
	for i, o := range owners {
		// Nearly always they are all the same.
		if s := set(o); i == 0 || !slices.Equal(s, set(owners[0])) {
			all = append(all, s...)
		}
	}
	slices.SortFunc(all, compare)
	return slices.Compact(all)
}

// mergeVerbs gives a list even where there are none: the field is required, and null breaks clients that take it for
// one.
func mergeVerbs[O any](owners []*O, verbs func(*O) []string) []string {
	if all := mergeSets(owners, verbs, strings.Compare); all != nil {
		return all
	}
	return []string{}
}

// compareKinds is positive if a says more than b, or if it is of the newer version.
func compareKinds(a, b *metav1.GroupVersionKind) int {
	a, b = orEmpty(a), orEmpty(b)
	return cmp.Or(
		cmp.Compare(a.Kind, b.Kind),
		cmp.Compare(a.Group, b.Group),
		compareVersions(a.Version, b.Version),
	)
}

// orEmpty makes an object of a kind that is not there: client-go 0.26 reads through the pointer of v2beta1.
func orEmpty(kind *metav1.GroupVersionKind) *metav1.GroupVersionKind {
	if kind == nil {
		return &metav1.GroupVersionKind{}
	}
	return kind
}
