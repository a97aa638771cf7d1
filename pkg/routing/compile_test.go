package routing

import (
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	apidiscoveryv2 "k8s.io/api/apidiscovery/v2"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"

	"xds-server/pkg/discovery"
)

// view makes a view from lines "group/version/resource" or "…/resource/subresource"; "group/version!" is Stale.
func view(lines ...string) *discovery.View {
	v := &discovery.View{}
	for _, line := range lines {
		line, stale := strings.CutSuffix(line, "!")
		p := strings.Split(line, "/")
		g := at(&v.Groups, func(g apidiscoveryv2.APIGroupDiscovery) bool { return g.Name == p[0] },
			apidiscoveryv2.APIGroupDiscovery{ObjectMeta: metav1.ObjectMeta{Name: p[0]}})
		gv := at(&g.Versions, func(v apidiscoveryv2.APIVersionDiscovery) bool { return v.Version == p[1] },
			apidiscoveryv2.APIVersionDiscovery{Version: p[1], Freshness: apidiscoveryv2.DiscoveryFreshnessCurrent})
		if stale {
			gv.Freshness = apidiscoveryv2.DiscoveryFreshnessStale
		}
		if len(p) < 3 {
			continue
		}
		r := at(&gv.Resources, func(r apidiscoveryv2.APIResourceDiscovery) bool { return r.Resource == p[2] },
			apidiscoveryv2.APIResourceDiscovery{Resource: p[2]})
		if len(p) == 4 {
			r.Subresources = append(r.Subresources, apidiscoveryv2.APISubresourceDiscovery{Subresource: p[3]})
		}
	}
	return v
}

func at[T any](list *[]T, same func(T) bool, missing T) *T {
	i := slices.IndexFunc(*list, same)
	if i < 0 {
		*list, i = append(*list, missing), len(*list)
	}
	return &(*list)[i]
}

func entries(t Table) map[string]string {
	out := map[string]string{}
	for _, e := range t.Entries {
		out[e.Key.String()] = e.Set.ID()
	}
	return out
}

func TestEveryKeyGoesToTheServersThatServeIt(t *testing.T) {
	both := []string{"/v1/pods", "/v1/pods/status", "apps/v1/deployments"}
	with := func(more ...string) *discovery.View { return view(append(slices.Clone(both), more...)...) }
	tests := map[string]struct {
		views map[string]*discovery.View
		want  map[string]string
		def   string
	}{
		"what all servers serve needs no entry": {
			views: map[string]*discovery.View{"o": with(), "n": with()},
			want:  map[string]string{}, def: "local+n",
		},
		"a version that only the new server has, its documents too": {
			views: map[string]*discovery.View{"o": with(), "n": with("storagemigration.k8s.io/v1/storageversionmigrations")},
			want: map[string]string{
				"storagemigration.k8s.io": "n", "storagemigration.k8s.io/v1": "n",
				"storagemigration.k8s.io/v1/storageversionmigrations": "n",
			}, def: "local+n",
		},
		"a new resource of a version that both have: the documents come from the server with all of it": {
			views: map[string]*discovery.View{"o": with(), "n": with("apps/v1/gizmos")},
			want:  map[string]string{"apps": "n", "apps/v1": "n", "apps/v1/gizmos": "n"}, def: "local+n",
		},
		"a new subresource of a resource that both have": {
			views: map[string]*discovery.View{"o": with(), "n": with("apps/v1/deployments/heat")},
			want:  map[string]string{"apps": "n", "apps/v1": "n", "apps/v1/deployments/heat": "n"}, def: "local+n",
		},
		"a resource that differs comes with its subresources, so that others are known not to exist": {
			views: map[string]*discovery.View{"o": with(), "n": with("apps/v1/gizmos", "apps/v1/gizmos/status")},
			want:  map[string]string{"apps": "n", "apps/v1": "n", "apps/v1/gizmos": "n", "apps/v1/gizmos/status": "n"}, def: "local+n",
		},
		"what the newer server removed stays local, without failing over to a 404": {
			views: map[string]*discovery.View{"o": with("old.io/v1/relics"), "n": with()},
			want:  map[string]string{"old.io": "local", "old.io/v1": "local", "old.io/v1/relics": "local"}, def: "local+n",
		},
		"two new servers share the work": {
			views: map[string]*discovery.View{"o": with(), "n": with("x.io/v1/xs"), "m": with("x.io/v1/xs")},
			want:  map[string]string{"x.io": "m+n", "x.io/v1": "m+n", "x.io/v1/xs": "m+n"}, def: "local+m+n",
		},
		"an aggregated API that the local server can't reach is served by the one that can": {
			views: map[string]*discovery.View{"o": with("agg.io/v1/things", "agg.io/v1!"), "n": with("agg.io/v1/things")},
			want:  map[string]string{"agg.io": "n", "agg.io/v1": "n", "agg.io/v1/things": "n"}, def: "local+n",
		},
		"an aggregated API that nobody can reach is left to the local server": {
			views: map[string]*discovery.View{"o": with("agg.io/v1!"), "n": with("agg.io/v1/things", "agg.io/v1!")},
			want:  map[string]string{}, def: "local+n",
		},
		"a server that was never read is sent nothing, and takes nothing away": {
			views: map[string]*discovery.View{"o": with(), "n": nil},
			want:  map[string]string{}, def: "local",
		},
		"a local server that was never read is still where the unknown goes": {
			views: map[string]*discovery.View{"o": nil, "n": with("x.io/v1/xs")},
			want:  map[string]string{}, def: "local+n",
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			got := Compile("o", tt.views)
			if diff := cmp.Diff(tt.want, entries(got)); diff != "" {
				t.Errorf("entries (-want +got):\n%s", diff)
			}
			if got.Default.ID() != tt.def {
				t.Errorf("default is %q, want %q", got.Default.ID(), tt.def)
			}
		})
	}
}

// drawViews makes views of up to four servers over a small world of keys, so that they often differ in a little.
func drawViews(t *rapid.T) map[string]*discovery.View {
	world := []string{
		"/v1/pods", "/v1/pods/status", "/v1/pods/exec", "apps/v1/deployments", "apps/v1/deployments/scale",
		"apps/v2/deployments", "x.io/v1/xs", "x.io/v1/xs/status", "y.io/v1/ys", "y.io/v1!", "x.io/v1!",
	}
	views := map[string]*discovery.View{}
	for _, name := range []string{"a", "b", "c", "d"}[:rapid.IntRange(1, 4).Draw(t, "servers")] {
		if rapid.IntRange(0, 9).Draw(t, "unread") == 0 {
			views[name] = nil
			continue
		}
		views[name] = view(rapid.SliceOfNDistinct(rapid.SampledFrom(world), 0, len(world), rapid.ID).Draw(t, name)...)
	}
	return views
}

// serves is the plain meaning of a view, written apart from the compiler.
func serves(v *discovery.View, k Key) bool {
	if v == nil {
		return false
	}
	for _, g := range v.Groups {
		for _, gv := range g.Versions {
			if g.Name != k.Group || gv.Version != k.Version || gv.Freshness == apidiscoveryv2.DiscoveryFreshnessStale {
				continue
			}
			for _, r := range gv.Resources {
				if r.Resource == k.Resource && (k.Subresource == "" || slices.ContainsFunc(r.Subresources,
					func(s apidiscoveryv2.APISubresourceDiscovery) bool { return s.Subresource == k.Subresource })) {
					return true
				}
			}
		}
	}
	return false
}

func TestTheTableSaysExactlyWhoServesWhat(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		views := drawViews(t)
		keys := map[Key]bool{}
		for _, v := range views {
			for k := range collect([]string{"v"}, map[string]*discovery.View{"v": orEmpty(v)}) {
				if k.Resource != "" {
					keys[k] = true
				}
			}
		}
		for node := range views {
			table := Compile(node, views)
			for k := range keys {
				got := table.Lookup(k)
				members := slices.Clone(got.Peers)
				if got.Local {
					members = append(members, node)
				}
				for name, v := range views {
					if slices.Contains(members, name) != serves(v, k) {
						// The default keeps an unread local server: nothing is known of it.
						if name == node && v == nil && got.ID() == table.Default.ID() {
							continue
						}
						t.Fatalf("at %s, %s goes to %v, but server %s serves it: %v", node, k, members, name, serves(v, k))
					}
				}
			}
		}
	})
}

func TestTheTableDoesNotDependOnOrder(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		views := drawViews(t)
		shuffled := map[string]*discovery.View{}
		for name, v := range views {
			if v == nil {
				shuffled[name] = nil
				continue
			}
			groups := slices.Clone(v.Groups)
			rand.New(rand.NewPCG(uint64(rapid.Int().Draw(t, "seed")), 1)).Shuffle(len(groups), func(i, j int) { groups[i], groups[j] = groups[j], groups[i] })
			shuffled[name] = &discovery.View{Groups: groups}
		}
		for node := range views {
			if diff := cmp.Diff(Compile(node, views), Compile(node, shuffled)); diff != "" {
				t.Fatalf("another order of groups gave another table:\n%s", diff)
			}
		}
	})
}

// A request is forwarded by the table of the node that it reached. The peer's listener leads to its local server only,
// so the peer must be one that serves the key: the law that makes one hop enough.
func TestOneHopIsEnough(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		views := drawViews(t)
		for node := range views {
			for _, e := range Compile(node, views).Entries {
				for _, peer := range e.Set.Peers {
					if e.Key.Resource != "" && !serves(views[peer], e.Key) {
						t.Fatalf("%s sends %s to %s, which does not serve it", node, e.Key, peer)
					}
				}
			}
		}
	})
}

func orEmpty(v *discovery.View) *discovery.View {
	if v == nil {
		return &discovery.View{}
	}
	return v
}

func TestEntriesAreSortedAndSetsNamedOnce(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		views := drawViews(t)
		table := Compile(slices.Sorted(maps.Keys(views))[0], views)
		if !slices.IsSortedFunc(table.Entries, func(a, b Entry) int { return a.Key.Compare(b.Key) }) {
			t.Fatal("entries are not sorted")
		}
		seen := map[string]bool{}
		for _, s := range table.Sets() {
			if seen[s.ID()] {
				t.Fatalf("set %s appears twice", s.ID())
			}
			seen[s.ID()] = true
		}
	})
}

func TestATableNamesTheVersionsOfWhichTheLocalServerCanOnlySayThatItCannotReachThem(t *testing.T) {
	views := map[string]*discovery.View{
		"o": view("/v1/pods", "metrics.k8s.io/v1!", "gone.io/v1!"),
		"n": view("/v1/pods", "metrics.k8s.io/v1/nodes", "gone.io/v1!"),
	}
	if got := Compile("o", views).Stale; !slices.Equal(got, []Key{{Group: "metrics.k8s.io", Version: "v1"}}) {
		t.Errorf("at o: %v", got)
	}
	if got := Compile("n", views).Stale; len(got) > 0 {
		t.Errorf("at n, which reaches all that anybody does: %v", got)
	}
}
