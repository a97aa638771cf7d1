package discovery

import (
	"slices"
	"strings"

	apidiscoveryv2 "k8s.io/api/apidiscovery/v2"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// GroupList is the legacy /apis: all groups but the core group. Stale versions are listed like others, as
// kube-aggregator lists APIServices that are not available.
func (v *View) GroupList() *metav1.APIGroupList {
	list := &metav1.APIGroupList{
		TypeMeta: metav1.TypeMeta{Kind: "APIGroupList", APIVersion: "v1"},
		Groups:   make([]metav1.APIGroup, 0, len(v.Groups)),
	}
	for i := range v.Groups {
		if g := &v.Groups[i]; g.Name != "" && len(g.Versions) > 0 {
			list.Groups = append(list.Groups, legacyGroup(g))
		}
	}
	return list
}

// Group is the legacy /apis/<group>; nil if there is none. The core group has no such document.
func (v *View) Group(name string) *metav1.APIGroup {
	g := v.find(name)
	if name == "" || g == nil || len(g.Versions) == 0 {
		return nil
	}
	legacy := legacyGroup(g)
	legacy.Kind, legacy.APIVersion = "APIGroup", "v1"
	return &legacy
}

func legacyGroup(g *apidiscoveryv2.APIGroupDiscovery) metav1.APIGroup {
	legacy := metav1.APIGroup{Name: g.Name, Versions: make([]metav1.GroupVersionForDiscovery, 0, len(g.Versions))}
	for _, v := range g.Versions {
		gv := schema.GroupVersion{Group: g.Name, Version: v.Version}
		legacy.Versions = append(legacy.Versions, metav1.GroupVersionForDiscovery{GroupVersion: gv.String(), Version: v.Version})
	}
	legacy.PreferredVersion = legacy.Versions[0]
	return legacy
}

// ResourceList is the legacy /apis/<group>/<version>, or /api/v1; nil if there is none. It is without
// storageVersionHashes, which views do not have. A Stale version's has what is known of it, which may be nothing.
func (v *View) ResourceList(gv schema.GroupVersion) *metav1.APIResourceList {
	version := v.Find(gv)
	if version == nil {
		return nil
	}
	list := &metav1.APIResourceList{
		TypeMeta:     metav1.TypeMeta{Kind: "APIResourceList", APIVersion: "v1"},
		GroupVersion: gv.String(),
		APIResources: make([]metav1.APIResource, 0, 2*len(version.Resources)),
	}
	if gv.Group == "" {
		// As old as it is, /api/v1 has no apiVersion: see keepUnversioned in k8s.io/apiserver.
		list.APIVersion = ""
	}
	for i := range version.Resources {
		list.APIResources = appendLegacyResource(list.APIResources, gv, &version.Resources[i])
	}
	// A server registers storages by their paths, sorted.
	slices.SortFunc(list.APIResources, func(a, b metav1.APIResource) int { return strings.Compare(a.Name, b.Name) })
	return list
}

// appendLegacyResource appends a resource and its subresources.
func appendLegacyResource(list []metav1.APIResource, gv schema.GroupVersion, r *apidiscoveryv2.APIResourceDiscovery) []metav1.APIResource {
	namespaced := r.Scope == apidiscoveryv2.ScopeNamespace
	// A resource without a kind and verbs is none: the server has made it up as the parent of its subresources.
	if *orEmpty(r.ResponseKind) != (metav1.GroupVersionKind{}) || len(r.Verbs) > 0 {
		list = append(list, legacyResource(gv, metav1.APIResource{
			Name: r.Resource, SingularName: r.SingularResource, Namespaced: namespaced,
			Verbs: r.Verbs, ShortNames: r.ShortNames, Categories: r.Categories,
		}, r.ResponseKind))
	}
	for _, s := range r.Subresources {
		list = append(list, legacyResource(gv, metav1.APIResource{
			Name: r.Resource + "/" + s.Subresource, Namespaced: namespaced, Verbs: s.Verbs,
		}, s.ResponseKind))
	}
	return list
}

// legacyResource completes a resource with its kind, whose group and version are said only where they differ from the
// list's.
func legacyResource(gv schema.GroupVersion, r metav1.APIResource, kind *metav1.GroupVersionKind) metav1.APIResource {
	k := orEmpty(kind)
	r.Kind = k.Kind
	if (schema.GroupVersion{Group: k.Group, Version: k.Version}) != gv {
		r.Group, r.Version = k.Group, k.Version
	}
	if r.Verbs == nil {
		r.Verbs = metav1.Verbs{}
	}
	return r
}

// Find is a version of a group in the view; nil if there is none.
func (v *View) Find(gv schema.GroupVersion) *apidiscoveryv2.APIVersionDiscovery {
	g := v.find(gv.Group)
	if g == nil {
		return nil
	}
	for i := range g.Versions {
		if g.Versions[i].Version == gv.Version {
			return &g.Versions[i]
		}
	}
	return nil
}

func (v *View) find(group string) *apidiscoveryv2.APIGroupDiscovery {
	for i := range v.Groups {
		if v.Groups[i].Name == group {
			return &v.Groups[i]
		}
	}
	return nil
}
