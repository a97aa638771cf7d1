package documents

import (
	"cmp"
	"maps"
	"slices"

	apidiscoveryv2 "k8s.io/api/apidiscovery/v2"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"xds-server/pkg/discovery"
)

type versionSet map[schema.GroupVersion]bool

// known is what all servers say together.
type known struct {
	// servers counts those with a view.
	servers int
	// view is all views united. While not everything is read, it also has what is listed and in no view, as Stale.
	view *discovery.View
	// listed are the versions in the legacy /apis of the servers.
	listed versionSet
	// hashes are the storageVersionHashes.
	hashes    map[schema.GroupVersion]map[string]string
	addresses []metav1.ServerAddressByClientCIDR
}

func unite(observations []discovery.Observation, complete bool) *known {
	k := &known{listed: versionSet{}, hashes: map[schema.GroupVersion]map[string]string{}}
	var views []*discovery.View
	for _, o := range observations {
		if o.View != nil {
			k.servers++
			views = append(views, o.View)
		}
		if o.Documents != nil {
			k.add(o.Documents)
		}
	}
	slices.SortFunc(k.addresses, func(a, b metav1.ServerAddressByClientCIDR) int {
		return cmp.Or(cmp.Compare(a.ClientCIDR, b.ClientCIDR), cmp.Compare(a.ServerAddress, b.ServerAddress))
	})
	k.addresses = slices.Compact(k.addresses)
	k.view = discovery.Merge(views...)
	if complete || k.servers == 0 {
		return k
	}
	k.addUnread()
	return k
}

func (k *known) add(d *discovery.Documents) {
	k.addresses = append(k.addresses, d.Addresses...)
	for _, gv := range d.Listed {
		k.listed[gv] = true
	}
	for gv, hashes := range d.StorageVersionHashes {
		all := k.hashes[gv]
		if all == nil {
			all = make(map[string]string, len(hashes))
			k.hashes[gv] = all
		}
		for resource, hash := range hashes {
			// Servers of different versions may store differently: any rule will do that asks for no server's name.
			if other, ok := all[resource]; !ok || hash < other {
				all[resource] = hash
			}
		}
	}
}

// addUnread adds what is listed and in no view, as Stale: behind everything else, since nobody is known to prefer it.
func (k *known) addUnread() {
	groups := slices.Clone(k.view.Groups)
	for _, gv := range slices.SortedFunc(maps.Keys(k.listed), compareVersions) {
		if k.view.Find(gv) != nil {
			continue
		}
		stale := apidiscoveryv2.APIVersionDiscovery{Version: gv.Version, Freshness: apidiscoveryv2.DiscoveryFreshnessStale}
		i := slices.IndexFunc(groups, func(g apidiscoveryv2.APIGroupDiscovery) bool { return g.Name == gv.Group })
		if i < 0 {
			i, groups = len(groups), append(groups, apidiscoveryv2.APIGroupDiscovery{ObjectMeta: metav1.ObjectMeta{Name: gv.Group}})
		}
		groups[i].Versions = append(slices.Clone(groups[i].Versions), stale)
	}
	k.view = &discovery.View{Groups: groups, Partial: k.view.Partial}
}

func compareVersions(a, b schema.GroupVersion) int {
	return cmp.Or(cmp.Compare(a.Group, b.Group), cmp.Compare(a.Version, b.Version))
}

// resources is the legacy list of a version that is in the view, with its storageVersionHashes.
func (k *known) resources(gv schema.GroupVersion) *metav1.APIResourceList {
	list := k.view.ResourceList(gv)
	for i := range list.APIResources {
		r := &list.APIResources[i]
		r.StorageVersionHash = k.hashes[gv][r.Name]
	}
	return list
}

// differs says that some server with a view has it unlike the united one, or lists or hashes something else. What is not
// read of a server doesn't differ.
func (k *known) differs(observations []discovery.Observation) bool {
	served := k.served()
	for _, o := range observations {
		if o.View == nil {
			continue
		}
		if !discovery.Equal(o.View, k.view) {
			return true
		}
		if o.Documents == nil {
			continue
		}
		for gv, hashes := range o.Documents.StorageVersionHashes {
			if !maps.Equal(hashes, k.hashes[gv]) {
				return true
			}
		}
		if listed := o.Documents.Listed; len(listed) > 0 && !maps.Equal(served, setOf(listed)) {
			return true
		}
	}
	return false
}

func setOf(list []schema.GroupVersion) versionSet {
	out := make(versionSet, len(list))
	for _, gv := range list {
		out[gv] = true
	}
	return out
}

// served are the versions that /apis lists.
func (k *known) served() versionSet {
	out := versionSet{}
	for _, group := range k.view.Groups {
		for _, v := range group.Versions {
			if group.Name != "" {
				out[schema.GroupVersion{Group: group.Name, Version: v.Version}] = true
			}
		}
	}
	return out
}
