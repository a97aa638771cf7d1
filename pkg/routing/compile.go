package routing

import (
	"math/big"
	"slices"
	"strings"

	apidiscoveryv2 "k8s.io/api/apidiscovery/v2"

	"xds-server/pkg/discovery"
)

// Compile makes node's table from the last views of the servers, by server name. A server without a view (nil) is
// unknown: it is part of no set, so that nothing is sent to it on a guess, and the table is not complete. The node's own
// server is part of the default even then, since it is where requests go that nothing is known of.
//
// A version that is Stale at a server (an aggregated API that it can't reach) is not served by it as long as another
// server has it Current; if nobody has, it is left to the default.
func Compile(node string, views map[string]*discovery.View) Table {
	names := make([]string, 0, len(views))
	for name, v := range views {
		if v != nil {
			names = append(names, name)
		}
	}
	slices.Sort(names)

	servedBy := collect(names, views)
	all := mask(len(names))
	sets := newSets(node, names)
	table := Table{Node: node, Default: sets.of(all), Complete: len(names) == len(views)}
	table.Default.Local = true

	for key, servers := range servedBy {
		if servers.Cmp(all) != 0 || servedBy[key.Parent()].Cmp(all) != 0 {
			table.Entries = append(table.Entries, Entry{Key: key, Set: sets.of(servers)})
		}
	}
	slices.SortFunc(table.Entries, func(a, b Entry) int { return a.Key.Compare(b.Key) })
	table.Stale = stale(views[node], servedBy)
	return table
}

// stale are the versions that a view has as Stale and somebody serves.
func stale(v *discovery.View, servedBy map[Key]*big.Int) []Key {
	if v == nil {
		return nil
	}
	var out []Key
	for _, g := range v.Groups {
		for _, version := range g.Versions {
			key := Key{Group: g.Name, Version: version.Version}
			if version.Freshness == apidiscoveryv2.DiscoveryFreshnessStale && servedBy[key] != nil {
				out = append(out, key)
			}
		}
	}
	slices.SortFunc(out, Key.Compare)
	return out
}

// find is a binary search, since entries are sorted.
func (t Table) find(k Key) (Entry, bool) {
	i, ok := slices.BinarySearchFunc(t.Entries, k, func(e Entry, k Key) int { return e.Key.Compare(k) })
	if !ok {
		return Entry{}, false
	}
	return t.Entries[i], true
}

// collect says for each key which servers serve it, as a bit set over names.
func collect(names []string, views map[string]*discovery.View) map[Key]*big.Int {
	served := map[Key]*big.Int{}
	add := func(k Key, server int) {
		s := served[k]
		if s == nil {
			s = new(big.Int)
			served[k] = s
		}
		s.SetBit(s, server, 1)
	}
	for i, name := range names {
		for _, g := range views[name].Groups {
			for _, v := range g.Versions {
				if v.Freshness == apidiscoveryv2.DiscoveryFreshnessStale {
					continue
				}
				for _, r := range v.Resources {
					add(Key{Group: g.Name, Version: v.Version, Resource: r.Resource}, i)
					for _, s := range r.Subresources {
						add(Key{Group: g.Name, Version: v.Version, Resource: r.Resource, Subresource: s.Subresource}, i)
					}
				}
			}
		}
	}
	return withDocuments(served, len(names))
}

// withDocuments adds the keys of whole versions and groups, whose documents must come from servers that have all of
// their resources or, where no server has them all, as many as any has.
func withDocuments(served map[Key]*big.Int, servers int) map[Key]*big.Int {
	counts := map[Key][]int{}
	for k, by := range served {
		for _, doc := range []Key{{Group: k.Group, Version: k.Version}, {Group: k.Group}} {
			if doc.Group == "" && doc.Version == "" {
				continue // the core group has no group document
			}
			if counts[doc] == nil {
				counts[doc] = make([]int, servers)
			}
			for i := range servers {
				counts[doc][i] += int(by.Bit(i))
			}
		}
	}
	for doc, n := range counts {
		best, by := slices.Max(n), new(big.Int)
		for i, have := range n {
			if have == best {
				by.SetBit(by, i, 1)
			}
		}
		served[doc] = by
	}
	return served
}

// mask is the set of all n servers.
func mask(n int) *big.Int {
	m := new(big.Int).Lsh(big.NewInt(1), uint(n))
	return m.Sub(m, big.NewInt(1))
}

// sets makes each distinct Set once, however many keys share it.
type sets struct {
	local int
	names []string
	made  map[string]Set
}

func newSets(node string, names []string) *sets {
	local, ok := slices.BinarySearch(names, node)
	if !ok {
		local = -1
	}
	return &sets{local: local, names: names, made: map[string]Set{}}
}

func (s *sets) of(servers *big.Int) Set {
	id := string(servers.Bytes())
	if set, ok := s.made[id]; ok {
		return set
	}
	var set Set
	for i, name := range s.names {
		switch {
		case servers.Bit(i) == 0:
		case i == s.local:
			set.Local = true
		default:
			set.Peers = append(set.Peers, name)
		}
	}
	s.made[id] = set
	return set
}

// Sets is every distinct set of the table, the default among them, sorted by ID.
func (t Table) Sets() []Set {
	byID := map[string]Set{t.Default.ID(): t.Default}
	for _, e := range t.Entries {
		byID[e.Set.ID()] = e.Set
	}
	out := make([]Set, 0, len(byID))
	for _, s := range byID {
		out = append(out, s)
	}
	slices.SortFunc(out, func(a, b Set) int { return strings.Compare(a.ID(), b.ID()) })
	return out
}
