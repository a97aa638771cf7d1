package discovery

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"maps"
	"reflect"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	apidiscoveryv2 "k8s.io/api/apidiscovery/v2"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// stored is what is known of how the resources of a group and version are stored.
type stored struct {
	hashes map[string]string
	// entry is the view's, for which it was read.
	entry apidiscoveryv2.APIVersionDiscovery
	// read is when it was last asked for; due says that it is to be asked for, at the earliest at that time.
	read, due time.Time
	// rest is until when it is left alone, whatever changed, since it did not come in time.
	rest time.Time
}

const (
	// atOnce is how many legacy documents are read at the same time.
	atOnce = 4
	// A round reads so many of the documents that were not read for longest, and at least this part of all: nothing but
	// their content tells that a CRD's storage version changed, and they are too many to be read all each time.
	atLeast, part = 10, 12
)

func (k *knownDocuments) allDue() {
	for gv, s := range k.storage {
		s.due, s.rest = time.Unix(0, 0), time.Time{}
		k.storage[gv] = s
	}
}

// groupsDue marks all versions of groups: a change of one is a sign that another is stored now.
func (k *knownDocuments) groupsDue(groups map[string]bool) {
	for gv, s := range k.storage {
		if groups[gv.Group] {
			s.due = time.Unix(0, 0)
			k.storage[gv] = s
		}
	}
}

// schemasChanged marks the groups of which some document of OpenAPI v3 is another one now.
func (k *knownDocuments) schemasChanged(before map[string]Schema) {
	groups := map[string]bool{}
	for gv := range k.storage {
		if path := schemaPath(gv); k.index[path].Hash != before[path].Hash {
			groups[gv.Group] = true
		}
	}
	k.groupsDue(groups)
}

// viewChanged marks the groups that the view shows otherwise than before, and takes those that are new and forgets those
// that it no longer has.
func (k *knownDocuments) viewChanged(view *View) {
	k.view = view
	groups, now := map[string]bool{}, current(view)
	for gv, entry := range now {
		s, ok := k.storage[gv]
		if !ok || !reflect.DeepEqual(s.entry, *entry) {
			groups[gv.Group] = true
		}
		s.entry = *entry // also where it is equal, so that the view before is not kept for it
		k.storage[gv] = s
	}
	for gv := range k.storage {
		if now[gv] == nil {
			groups[gv.Group] = true
			delete(k.storage, gv)
		}
	}
	k.groupsDue(groups)
}

// oldestDue marks the documents that were not read for longest.
func (k *knownDocuments) oldestDue() {
	list := slices.SortedFunc(maps.Keys(k.storage), func(a, b schema.GroupVersion) int {
		return k.storage[a].read.Compare(k.storage[b].read)
	})
	for _, gv := range list[:min(len(list), max(atLeast, (len(list)+part-1)/part))] {
		s := k.storage[gv]
		s.due = time.Unix(0, 0)
		k.storage[gv] = s
	}
}

// readStorage reads the legacy documents that are due. One that the server can't give keeps its last hashes: many are of
// aggregated APIs, which may be slow or away.
func (r *documentsRead) readStorage(ctx context.Context) error {
	if r.a.view != r.next.view {
		r.touched, r.next.settled = true, r.now.Add(settling)
		r.next.viewChanged(r.a.view)
	}
	if !r.now.Before(r.next.nextStorage) {
		r.next.nextStorage = r.now.Add(round)
		r.next.oldestDue()
	}
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(atOnce)
	var mu sync.Mutex
	for gv, s := range maps.Clone(r.next.storage) {
		if s.due.IsZero() || r.now.Before(s.due) || r.now.Before(s.rest) {
			continue
		}
		r.touched = true
		g.Go(func() error {
			hashes, left, err := legacy(ctx, r, legacyPath(gv), func(b io.Reader) (map[string]string, entries, error) { return parseStorage(b, gv) })
			err, late := r.late(ctx, err)
			mu.Lock()
			defer mu.Unlock()
			s.read, s.due = r.now, time.Time{}
			if err != nil {
				if s.due = r.now.Add(again); late {
					s.rest = r.now.Add(rested)
				}
				err = r.partly(legacyPath(gv), err)
			} else {
				s.hashes = hashes
				r.out.add(left)
			}
			r.next.storage[gv] = s
			return err
		})
	}
	return g.Wait()
}

// legacy reads one legacy document.
func legacy[T any](ctx context.Context, r *documentsRead, path string, parse func(io.Reader) (T, entries, error)) (T, entries, error) {
	var none T
	a, err := r.fetch(ctx, path, "", maxLegacyBytes, r.timeout)
	if err != nil {
		return none, entries{}, err
	}
	out, left, err := parse(bytes.NewReader(a.body))
	if err != nil {
		return none, entries{}, invalid(fmt.Errorf("reading %s: %w", path, err))
	}
	return out, left, nil
}

// compose makes the documents of what is known now, or keeps them if they are the same.
func (r *documentsRead) compose() {
	next := &Documents{Addresses: r.next.addresses, Listed: r.next.listed, OpenAPIV3: r.next.index}
	next.StorageVersionHashes = make(map[schema.GroupVersion]map[string]string, len(r.next.storage))
	for gv, s := range r.next.storage {
		if len(s.hashes) > 0 {
			next.StorageVersionHashes[gv] = s.hashes
		}
	}
	if r.next.documents != nil && reflect.DeepEqual(next, r.next.documents) {
		return
	}
	r.next.documents, r.changed = next, true
}

// current are the groups and versions of a view that the server itself answers for now.
func current(view *View) map[schema.GroupVersion]*apidiscoveryv2.APIVersionDiscovery {
	out := map[schema.GroupVersion]*apidiscoveryv2.APIVersionDiscovery{}
	if view == nil {
		return out
	}
	for i := range view.Groups {
		g := &view.Groups[i]
		for j := range g.Versions {
			if v := &g.Versions[j]; v.Freshness != apidiscoveryv2.DiscoveryFreshnessStale {
				out[schema.GroupVersion{Group: g.Name, Version: v.Version}] = v
			}
		}
	}
	return out
}

func legacyPath(gv schema.GroupVersion) string { return "/" + schemaPath(gv) }

// schemaPath is a group and version's path in the index of OpenAPI v3.
func schemaPath(gv schema.GroupVersion) string {
	if gv.Group == "" {
		return "api/" + gv.Version
	}
	return "apis/" + gv.Group + "/" + gv.Version
}
