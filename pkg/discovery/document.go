package discovery

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"reflect"
	"slices"

	apidiscoveryv2 "k8s.io/api/apidiscovery/v2"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Limits of one document. Real ones stay far below: a cluster with 5,000 CRDs has about 10,000 resources and 30 MB.
// They bound what a broken or hostile server costs in memory, since JSON can name objects that are a hundred times as
// large as their text; such a document is refused as a whole. Subresources, as which an aggregated API lists what it
// likes (custom metrics), are only left out beyond their number, so that it costs its server no more than that version.
const (
	maxDocumentBytes = 64 << 20
	maxGroups        = 10_000
	maxVersions      = 20_000
	maxResources     = 100_000
	maxSubresources  = 200_000
	// maxEntryBytes is for one subresource, or one field of a resource.
	maxEntryBytes = 1 << 20
)

var errTooLarge = errors.New("the document is larger than any real one")

// document is one parsed aggregated discovery document, with how many of its entries were left out, by reason.
type document struct {
	groups  []apidiscoveryv2.APIGroupDiscovery
	dropped map[string]int
	// first is the first entry that was left out, for the log.
	first string
	// partial is a View's.
	partial map[schema.GroupVersion]bool
}

// parseDocument reads an aggregated discovery document, v2 or v2beta1: their JSON is the same but for the apiVersion.
// It goes through the outer lists token by token, so that a list's size is known before it takes memory. core says
// whether this is /api's document, whose one group has no name.
func parseDocument(r io.Reader, core bool) (document, error) {
	p := newParser(r)
	p.core = core
	if err := p.whole(p.list); err != nil {
		return document{}, err
	}
	return p.doc, nil
}

// whole reads a document that nothing follows.
func (p *parser) whole(read func() error) error {
	if err := read(); err != nil {
		if errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF
		}
		return err
	}
	if _, err := p.dec.Token(); !errors.Is(err, io.EOF) {
		return errors.New("something follows the document")
	}
	return nil
}

type parser struct {
	dec                         *json.Decoder
	core                        bool
	doc                         document
	groups, versions, resources int
	// subresources counts those that are kept, and lost the entries that were left out, but for mere repetitions.
	subresources, lost int
}

// list reads the whole APIGroupDiscoveryList.
func (p *parser) list() error {
	var kind, apiVersion string
	items := false
	err := p.object(func(field string) error {
		switch field {
		case "kind":
			return p.decode(&kind)
		case "apiVersion":
			return p.decode(&apiVersion)
		case "items":
			items = true
			seen := map[string]bool{}
			return p.array(func() error { return p.group(seen) })
		default:
			return p.skip()
		}
	})
	switch {
	case err != nil:
		return err
	case kind != "APIGroupDiscoveryList":
		return fmt.Errorf("it is no APIGroupDiscoveryList but %.40q", kind)
	case apiVersion != "apidiscovery.k8s.io/v2" && apiVersion != "apidiscovery.k8s.io/v2beta1":
		return fmt.Errorf("its version %.60q is not known", apiVersion)
	case !items:
		return errors.New("it has no items")
	}
	return nil
}

func (p *parser) group(seen map[string]bool) error {
	if p.groups++; p.groups > maxGroups {
		return fmt.Errorf("%w: more than %d groups", errTooLarge, maxGroups)
	}
	var g apidiscoveryv2.APIGroupDiscovery
	partial := map[string]bool{} // by version
	err := p.object(func(field string) error {
		switch field {
		case "metadata":
			var meta struct {
				Name string `json:"name"`
			}
			err := p.decode(&meta)
			g.Name = meta.Name
			return err
		case "versions":
			names := map[string]bool{}
			return p.array(func() error { return p.version(&g, names, partial) })
		default:
			return p.skip()
		}
	})
	if err != nil {
		return err
	}
	switch {
	case p.core != (g.Name == "") || !validGroup(g.Name):
		p.drop(reasonInvalid, "group", g.Name)
		p.partial("", "")
		return nil
	case seen[g.Name]:
		p.drop(reasonDuplicate, "group", g.Name)
		partial[""] = true
		for _, v := range g.Versions {
			partial[v.Version] = true
		}
	default:
		seen[g.Name] = true
		p.doc.groups = append(p.doc.groups, g)
	}
	for version := range partial {
		p.partial(g.Name, version)
	}
	return nil
}

func (p *parser) version(g *apidiscoveryv2.APIGroupDiscovery, seen, partial map[string]bool) error {
	if p.versions++; p.versions > maxVersions {
		return fmt.Errorf("%w: more than %d versions", errTooLarge, maxVersions)
	}
	var v apidiscoveryv2.APIVersionDiscovery
	before := p.lost
	err := p.object(func(field string) error {
		switch field {
		case "version":
			return p.decode(&v.Version)
		case "freshness":
			return p.decode(&v.Freshness)
		case "resources":
			places := map[string]int{}
			return p.array(func() error { return p.resource(&v, places) })
		default:
			return p.skip()
		}
	})
	if err != nil {
		return err
	}
	switch {
	case !validVersion(v.Version):
		p.drop(reasonInvalid, "version", v.Version)
		partial[""] = true
	case seen[v.Version]:
		p.drop(reasonDuplicate, "version", v.Version)
		partial[v.Version] = true
	default:
		seen[v.Version] = true
		g.Versions = append(g.Versions, v)
		if p.lost != before {
			partial[v.Version] = true
		}
	}
	return nil
}

// resource reads one resource into a version; places says where in it each name stands.
func (p *parser) resource(v *apidiscoveryv2.APIVersionDiscovery, places map[string]int) error {
	if p.resources++; p.resources > maxResources {
		return fmt.Errorf("%w: more than %d resources", errTooLarge, maxResources)
	}
	var r apidiscoveryv2.APIResourceDiscovery
	err := p.object(func(field string) error {
		switch field {
		case "resource":
			return p.small(&r.Resource)
		case "responseKind":
			return p.small(&r.ResponseKind)
		case "scope":
			return p.small(&r.Scope)
		case "singularResource":
			return p.small(&r.SingularResource)
		case "verbs":
			return p.small(&r.Verbs)
		case "shortNames":
			return p.small(&r.ShortNames)
		case "categories":
			return p.small(&r.Categories)
		case "subresources":
			places := map[string]int{}
			return p.array(func() error { return p.subresource(&r, places) })
		default:
			return p.skip()
		}
	})
	if err != nil {
		return fmt.Errorf("a resource: %w", err)
	}
	place, again := places[r.Resource]
	switch {
	case !validResource(r.Resource):
		p.drop(reasonInvalid, "resource", r.Resource)
	case oversized(r.Verbs, r.ShortNames, r.Categories):
		p.drop(reasonOversized, "resource", r.Resource)
	case again:
		p.repeat("resource", r.Resource, reflect.DeepEqual(r, v.Resources[place]))
	default:
		places[r.Resource] = len(v.Resources)
		v.Resources = append(v.Resources, r)
	}
	return nil
}

func (p *parser) subresource(r *apidiscoveryv2.APIResourceDiscovery, places map[string]int) error {
	var s apidiscoveryv2.APISubresourceDiscovery
	if err := p.small(&s); err != nil {
		return err
	}
	place, again := places[s.Subresource]
	switch {
	case !validSubresource(s.Subresource):
		p.drop(reasonInvalid, "subresource", s.Subresource)
	case again:
		p.repeat("subresource", s.Subresource, reflect.DeepEqual(s, r.Subresources[place]))
	case p.subresources >= maxSubresources || oversized(s.Verbs) || len(s.AcceptedTypes) > mostInList:
		p.drop(reasonOversized, "subresource", s.Subresource)
	default:
		p.subresources++
		places[s.Subresource] = len(r.Subresources)
		r.Subresources = append(r.Subresources, s)
	}
	return nil
}

func (p *parser) drop(reason, what, name string) {
	p.lost++
	p.count(reason, what, name)
}

func (p *parser) partial(group, version string) {
	if p.doc.partial == nil {
		p.doc.partial = map[schema.GroupVersion]bool{}
	}
	p.doc.partial[schema.GroupVersion{Group: group, Version: version}] = true
}

// repeat leaves out an entry whose name was there before: nothing is lost if it says the same.
func (p *parser) repeat(what, name string, same bool) {
	if !same {
		p.lost++
	}
	p.count(reasonDuplicate, what, name)
}

func (p *parser) count(reason, what, name string) {
	if p.doc.first == "" {
		p.doc.first = fmt.Sprintf("%s %.100q (%s)", what, name, reason)
	}
	p.doc.dropped[reason]++
}

// object reads an object and calls field for each of its names, with the value as the next thing to be read. A name
// given twice is refused: which one counts differs between JSON readers. null is an empty object.
func (p *parser) object(field func(name string) error) error {
	return p.mapping(100, field) // names that nobody knows are bounded too
}

// mapping is an object of at most so many names.
func (p *parser) mapping(most int, field func(name string) error) error {
	t, err := p.dec.Token()
	if err != nil || t == nil {
		return err
	}
	if t != json.Delim('{') {
		return fmt.Errorf("at byte %d: there is no object but %.20q", p.dec.InputOffset(), fmt.Sprint(t))
	}
	seen := make(map[string]bool, 4)
	for p.dec.More() {
		t, err := p.dec.Token()
		if err != nil {
			return err
		}
		name, _ := t.(string)
		if seen[name] {
			return fmt.Errorf("at byte %d: the field %.40q is given twice", p.dec.InputOffset(), name)
		}
		if len(seen) >= most {
			return fmt.Errorf("%w: an object of more than %d fields", errTooLarge, most)
		}
		seen[name] = true
		if err := field(name); err != nil {
			return err
		}
	}
	_, err = p.dec.Token()
	return err
}

// array reads an array and calls item with each item as the next thing to be read. null is an empty array.
func (p *parser) array(item func() error) error {
	t, err := p.dec.Token()
	if err != nil || t == nil {
		return err
	}
	if t != json.Delim('[') {
		return fmt.Errorf("at byte %d: there is no list but %.20q", p.dec.InputOffset(), fmt.Sprint(t))
	}
	for p.dec.More() {
		if err := item(); err != nil {
			return err
		}
	}
	_, err = p.dec.Token()
	return err
}

func (p *parser) decode(into any) error {
	if err := p.dec.Decode(into); err != nil {
		return fmt.Errorf("at byte %d: %w", p.dec.InputOffset(), err)
	}
	return nil
}

func (p *parser) skip() error {
	var raw json.RawMessage
	return p.decode(&raw)
}

// mostInList is more than any real resource has verbs, short names or the like, so that what is kept stays in proportion.
const mostInList = 256

func oversized(lists ...[]string) bool {
	return slices.ContainsFunc(lists, func(l []string) bool { return len(l) > mostInList })
}

// limited reads at most n bytes and then fails, where io.LimitReader would let a document look cut off.
type limited struct {
	r io.Reader
	n int64
}

func (l *limited) Read(b []byte) (int, error) {
	if l.n <= 0 {
		return 0, fmt.Errorf("%w: it does not end", errTooLarge)
	}
	if int64(len(b)) > l.n {
		b = b[:l.n]
	}
	n, err := l.r.Read(b)
	l.n -= int64(n)
	return n, err
}
