package documents

import (
	"bytes"
	"cmp"
	"encoding/json"
	"maps"
	"slices"
)

const gvkField = "x-kubernetes-group-version-kind"

// gvk is an entry of a definition's x-kubernetes-group-version-kind.
type gvk struct {
	Group   string `json:"group"`
	Kind    string `json:"kind"`
	Version string `json:"version"`
}

func compareGVKs(a, b gvk) int {
	return cmp.Or(cmp.Compare(a.Group, b.Group), cmp.Compare(a.Version, b.Version), cmp.Compare(a.Kind, b.Kind))
}

// definitions are the named schemas of a document, to which other documents' are added.
//
// A name stays one definition, where kube-openapi's aggregator would add a renamed copy: kubectl takes the last and
// managedfields' type converter fails if two definitions say that they are of the same kind. The first document's wins,
// and gets the properties that only others have: kubectl explain shows them, and kubectl apply needs to know how lists
// in them are merged, whichever server a field is of. Each kind is of one definition, the first document's.
type definitions struct {
	byName object
	owners map[gvk]string
}

func newDefinitions(byName object) *definitions {
	d := &definitions{byName: byName, owners: map[gvk]string{}}
	for _, name := range slices.Sorted(maps.Keys(byName)) {
		for _, kind := range kindsOf(byName[name]) {
			if _, ok := d.owners[kind]; !ok {
				d.owners[kind] = name
			}
		}
	}
	return d
}

// add unites another document's definitions with these, and says whether that changed anything.
func (d *definitions) add(from object) bool {
	changed := false
	for _, name := range slices.Sorted(maps.Keys(from)) {
		theirs := from[name]
		ours, ok := d.byName[name]
		if ok && bytes.Equal(ours, theirs) {
			continue
		}
		mine, more := d.claim(name, kindsOf(theirs))
		if ok {
			united := unitedDefinition(ours, theirs, more)
			changed = changed || !bytes.Equal(united, ours)
			d.byName[name] = united
			continue
		}
		d.byName[name] = withKinds(theirs, mine)
		changed = true
	}
	return changed
}

// claim makes a name the owner of its kinds. It returns those that it owns, and which of them are new.
func (d *definitions) claim(name string, kinds []gvk) (mine, added []gvk) {
	for _, kind := range kinds {
		owner, ok := d.owners[kind]
		if !ok {
			d.owners[kind] = name
			added = append(added, kind)
		}
		if !ok || owner == name {
			mine = append(mine, kind)
		}
	}
	return mine, added
}

// kindsOf reads the kinds of a definition; one that isn't as it should be has none.
func kindsOf(definition json.RawMessage) []gvk {
	if !bytes.Contains(definition, []byte(gvkField)) {
		return nil
	}
	o, err := parseObject(definition)
	if err != nil {
		return nil
	}
	var kinds []gvk
	if json.Unmarshal(o[gvkField], &kinds) != nil {
		return nil
	}
	return kinds
}

// withKinds is the definition with these of its kinds.
func withKinds(definition json.RawMessage, kinds []gvk) json.RawMessage {
	if slices.Equal(kindsOf(definition), kinds) {
		return definition
	}
	o, err := parseObject(definition)
	if err != nil {
		return definition
	}
	o.setKinds(kinds)
	return o.encode()
}

func (o object) setKinds(kinds []gvk) {
	if len(kinds) == 0 {
		delete(o, gvkField)
		return
	}
	o[gvkField], _ = json.Marshal(kinds) // strings always have a JSON form
}

// unitedDefinition adds kinds, and properties that only theirs has. What is no object of the same type stays ours.
func unitedDefinition(ours, theirs json.RawMessage, kinds []gvk) json.RawMessage {
	o, err := parseObject(ours)
	if err != nil {
		return ours
	}
	changed := false
	if len(kinds) > 0 {
		all := append(kindsOf(ours), kinds...)
		slices.SortFunc(all, compareGVKs)
		o.setKinds(all)
		changed = true
	}
	if t, err := parseObject(theirs); err == nil && bytes.Equal(o["type"], t["type"]) {
		mine, err := o.child("properties")
		more, err2 := t.child("properties")
		if err == nil && err2 == nil && mine.addMissing(more) {
			o.set("properties", mine)
			changed = true
		}
	}
	if !changed {
		return ours
	}
	return o.encode()
}
