package discovery

import (
	"fmt"
	"slices"
	"testing"

	apidiscoveryv2 "k8s.io/api/apidiscovery/v2"
)

// manyCRDs is a view with n CRDs in groups of ten, as a server lists them, and one group more with a name of its own.
func manyCRDs(n int, own string) *View {
	v := view("/v1/pods apps/v1/deployments " + own + "/v1/owns")
	for i := range n {
		if i%10 == 0 {
			v.Groups = append(v.Groups, groups(fmt.Sprintf("g%05d.example.test/v1/x", i))...)
			v.Groups[len(v.Groups)-1].Versions[0].Resources = nil
		}
		version := &v.Groups[len(v.Groups)-1].Versions[0]
		version.Resources = append(version.Resources, apidiscoveryv2.APIResourceDiscovery{
			Resource: fmt.Sprintf("things%d", i), SingularResource: fmt.Sprintf("thing%d", i), Scope: apidiscoveryv2.ScopeNamespace,
			ResponseKind: gvk("", "", fmt.Sprintf("Thing%d", i)), ShortNames: []string{fmt.Sprintf("t%d", i)},
			Verbs:        []string{"delete", "deletecollection", "get", "list", "patch", "create", "update", "watch"},
			Subresources: []apidiscoveryv2.APISubresourceDiscovery{{Subresource: "status", ResponseKind: gvk("", "", "Thing"), Verbs: []string{"get", "patch", "update"}}},
		})
	}
	return v
}

func BenchmarkMergeOf5000CRDs(b *testing.B) {
	one, two := manyCRDs(5000, "old.test"), manyCRDs(5000, "new.test")
	b.ReportAllocs()
	for b.Loop() {
		Merge(one, two)
	}
}

func BenchmarkEqualOf5000CRDs(b *testing.B) {
	one, merged := manyCRDs(5000, "old.test"), Merge(manyCRDs(5000, "old.test"))
	b.ReportAllocs()
	for b.Loop() {
		if !Equal(one, merged) {
			b.Fatal("they differ")
		}
	}
}

// The worst that two servers can list: as many groups as are accepted, each before all others.
func BenchmarkMergeOfContradictions(b *testing.B) {
	var one []string
	for i := range maxGroups {
		one = append(one, fmt.Sprintf("g%05d", i))
	}
	two := slices.Clone(one)
	slices.Reverse(two)
	for b.Loop() {
		mergeOrders([][]string{one, two})
	}
}
