// Package routing turns views into one node's route table: which servers serve which key. It is pure: values in,
// values out, sorted, no clock and no IO.
package routing

import (
	"cmp"
	"strings"
)

// Key names what a request asks for: a resource, one of its subresources or, without a resource, a whole group and
// version (its discovery and OpenAPI documents) or, without a version too, a group.
type Key struct {
	Group, Version, Resource, Subresource string
}

// Path is the key as Envoy's classifier writes it into x-gvr: "group/version/resource", "group/version" or "group";
// the core group is empty. The subresource is not part of it.
func (k Key) Path() string {
	switch {
	case k.Version == "":
		return k.Group
	case k.Resource == "":
		return k.Group + "/" + k.Version
	default:
		return k.Group + "/" + k.Version + "/" + k.Resource
	}
}

// String is Path with the subresource, for people.
func (k Key) String() string {
	if k.Subresource == "" {
		return k.Path()
	}
	return k.Path() + "/" + k.Subresource
}

// Parent is the key without its subresource.
func (k Key) Parent() Key {
	k.Subresource = ""
	return k
}

// Compare orders keys by group, version, resource and subresource.
func (k Key) Compare(o Key) int {
	return cmp.Or(
		strings.Compare(k.Group, o.Group),
		strings.Compare(k.Version, o.Version),
		strings.Compare(k.Resource, o.Resource),
		strings.Compare(k.Subresource, o.Subresource),
	)
}

// Set is the servers that serve a key, as one node sees them: whether its own server is among them, and which peers
// are, sorted by name.
type Set struct {
	Local bool
	Peers []string
}

// ID is a name of the set that is the same wherever the same set is: "local+b+c", "b+c" or "local".
func (s Set) ID() string {
	if !s.Local {
		return strings.Join(s.Peers, "+")
	}
	return strings.Join(append([]string{"local"}, s.Peers...), "+")
}

// Entry says who serves a key.
type Entry struct {
	Key Key
	Set Set
}

// Table is one node's routes. Entries are sorted by key and hold only what differs from the default: the entry of a
// resource comes with those of all its subresources, so that others are known not to exist.
type Table struct {
	// Node is the name of the node whose table this is.
	Node string
	// Default serves every key that is not in Entries: those that all servers serve, and those that nobody does.
	// The local server is always part of it.
	Default Set
	Entries []Entry
	// Complete says that every server known to exist was read, so that what no view has does not exist. While it is
	// false, nobody can tell an API that does not exist from one that an unread server serves.
	Complete bool
	// Merged says that some server shows another discovery document than the cluster's, so that documents are merged.
	Merged bool
	// Stale are the keys of whole versions that the node's own server has but can't reach (aggregated APIs) and another
	// server can: its answers about them are errors. Sorted.
	Stale []Key
}

// Lookup is the set that serves a key: the subresource's own, else its resource's, else the default.
func (t Table) Lookup(k Key) Set {
	if e, ok := t.find(k); ok {
		return e.Set
	}
	if e, ok := t.find(k.Parent()); ok {
		return e.Set
	}
	return t.Default
}
