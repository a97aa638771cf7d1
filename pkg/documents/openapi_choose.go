package documents

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	apidiscoveryv2 "k8s.io/api/apidiscovery/v2"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"xds-server/pkg/discovery"
)

// schemaDocument is one path of OpenAPI v3, with each document that some server has there.
type schemaDocument struct {
	path string
	// same says that all servers have this document: it needs no body.
	same bool
	// gone says that it is of a group or version that no view has, and not everywhere: the API was removed, and some index
	// is older than the views.
	gone bool
	// wanted are the resources that the document has to have; nil if it is not of a version.
	wanted *apidiscoveryv2.APIVersionDiscovery
	gv     schema.GroupVersion
	// candidates are sorted by hash.
	candidates []*candidate
	choose     func() choice
}

// candidate is one document, and the servers that have it.
type candidate struct {
	hash string
	json []byte
	// views are of the servers that have this document.
	views []*discovery.View
	// coming says that a server is there from which the body will be read, if it is not read yet.
	coming bool
}

// choice is what stands for all servers' documents of a path: a content with its own hash, or, while there is none, the
// best hash that is known.
type choice struct {
	hash    string
	content *content
	// err is why documents were left out.
	err error
}

// newSchemaDocument collects who has what at a path.
func newSchemaDocument(path string, servers []discovery.Observation, merged *discovery.View) *schemaDocument {
	d := &schemaDocument{path: path}
	everywhere := true
	for _, s := range servers {
		at, ok := s.Documents.OpenAPIV3[path]
		if !ok {
			everywhere = false
			continue
		}
		i, found := slices.BinarySearchFunc(d.candidates, at.Hash, func(c *candidate, hash string) int { return cmp.Compare(c.hash, hash) })
		if !found {
			d.candidates = slices.Insert(d.candidates, i, &candidate{hash: at.Hash})
		}
		c := d.candidates[i]
		c.views = append(c.views, s.View)
		c.coming = c.coming || s.Ready && !s.Gone
		// Bodies of one hash are equal; if a server says so of others, still no order of servers decides.
		if c.json == nil || at.JSON != nil && bytes.Compare(at.JSON, c.json) < 0 {
			c.json = at.JSON
		}
	}
	d.same = everywhere && len(d.candidates) == 1
	if merged == nil {
		return d
	}
	parts := strings.Split(path, "/")
	switch {
	case len(parts) == 2 && parts[0] == "api":
		d.gv = schema.GroupVersion{Version: parts[1]}
	case len(parts) == 3 && parts[0] == "apis":
		d.gv = schema.GroupVersion{Group: parts[1], Version: parts[2]}
	case len(parts) == 2 && parts[0] == "apis":
		d.gone = !everywhere && !slices.ContainsFunc(merged.Groups, func(g apidiscoveryv2.APIGroupDiscovery) bool { return g.Name == parts[1] })
		return d
	default:
		return d
	}
	d.wanted = merged.Find(d.gv)
	d.gone = !everywhere && d.wanted == nil
	return d
}

// pick decides by content only. The best of the documents that have all resources is taken as it is; if none has all,
// the best is completed from the others. A body that isn't read yet is waited for while its server is there; documents
// that are no OpenAPI are left out.
func (d *schemaDocument) pick() choice {
	if d.same {
		return choice{hash: d.candidates[0].hash}
	}
	from, whole := d.candidates, true
	if d.wanted != nil {
		if from = slices.DeleteFunc(slices.Clone(from), func(c *candidate) bool { return !d.covers(c) }); len(from) == 0 {
			from, whole = d.candidates, false
		}
	}
	unread := choice{hash: from[0].hash}
	type body struct {
		*content
		facts
	}
	var bodies []body
	var left []error
	for _, c := range from {
		switch {
		case c.json != nil:
			b := body{content: newContent(mediaJSON, c.json)}
			if b.facts = factsOf(b.content); b.err != nil {
				left = append(left, fmt.Errorf("reading OpenAPI v3 of %s with hash %.20s: %w", d.path, c.hash, b.err))
				continue
			}
			bodies = append(bodies, b)
		case c.coming:
			return unread
		}
	}
	if unread.err = errors.Join(left...); len(bodies) == 0 {
		return unread
	}
	slices.SortFunc(bodies, func(a, b body) int {
		return cmp.Or(-cmp.Compare(a.paths, b.paths), -cmp.Compare(len(a.body), len(b.body)), cmp.Compare(a.hash, b.hash))
	})
	best := bodies[0].content
	if !whole && len(bodies) > 1 {
		var all [][]byte
		for _, b := range bodies {
			all = append(all, b.body)
		}
		united, changed, err := uniteV3(all)
		if err != nil {
			unread.err = errors.Join(unread.err, fmt.Errorf("uniting OpenAPI v3 of %s: %w", d.path, err))
		}
		if changed {
			best = newContent(mediaJSON, united)
		}
	}
	return choice{hash: best.hash, content: best, err: unread.err}
}

// covers says that some server with this document has every resource and subresource that is wanted, with all its verbs.
func (d *schemaDocument) covers(c *candidate) bool {
	return slices.ContainsFunc(c.views, func(v *discovery.View) bool {
		if v == nil {
			return false
		}
		has := v.Find(d.gv)
		return has != nil && covers(has, d.wanted)
	})
}

func covers(has, wanted *apidiscoveryv2.APIVersionDiscovery) bool {
	verbs := verbsOf(has)
	for name, wanted := range verbsOf(wanted) {
		has, ok := verbs[name]
		if !ok || slices.ContainsFunc(wanted, func(verb string) bool { return !slices.Contains(has, verb) }) {
			return false
		}
	}
	return true
}

// verbsOf are the verbs of each resource and subresource.
func verbsOf(v *apidiscoveryv2.APIVersionDiscovery) map[string][]string {
	out := map[string][]string{}
	for _, r := range v.Resources {
		out[r.Resource] = r.Verbs
		for _, s := range r.Subresources {
			out[r.Resource+"/"+s.Subresource] = s.Verbs
		}
	}
	return out
}

// facts are what choosing needs to know of a body.
type facts struct {
	paths int
	err   error
}

// knownFacts are kept by the SHA-512 of the body, since nearly all documents are the same from one Set to the next.
var knownFacts = struct {
	sync.Mutex
	byHash map[string]facts
}{byHash: map[string]facts{}}

func factsOf(c *content) facts {
	const most = 8192
	knownFacts.Lock()
	f, ok := knownFacts.byHash[c.hash]
	knownFacts.Unlock()
	if ok {
		return f
	}
	top, err := parseObject(c.body)
	if err == nil {
		var paths object
		paths, err = top.child("paths")
		f.paths = len(paths)
	}
	f.err = err
	knownFacts.Lock()
	defer knownFacts.Unlock()
	if len(knownFacts.byHash) >= most {
		clear(knownFacts.byHash)
	}
	knownFacts.byHash[c.hash] = f
	return f
}
