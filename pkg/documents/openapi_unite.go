package documents

import (
	"errors"
	"fmt"
	"maps"
	"slices"
)

// uniteV3 completes the first document with the paths, methods and components that only others have, and says whether there are
// any. Documents that can't be taken apart are left out, with an error.
func uniteV3(documents [][]byte) (united []byte, changed bool, err error) {
	var into *taken
	var left []error
	for i, b := range documents {
		t, err := takeApart(b)
		switch {
		case err != nil:
			left = append(left, fmt.Errorf("one of %d bytes: %w", len(b), err))
		case into == nil:
			into = t
			changed = i > 0
		case into.add(t):
			changed = true
		}
	}
	err = errors.Join(left...)
	if into == nil || !changed {
		return nil, false, err
	}
	return into.encode(), true, err
}

// taken is a document of OpenAPI v3, taken apart.
type taken struct {
	top, paths, components object
	kinds                  map[string]object // by kind of component
	schemas                *definitions
}

func takeApart(b []byte) (*taken, error) {
	var t taken
	var err error
	if t.top, err = parseObject(b); err != nil {
		return nil, err
	}
	if t.paths, err = t.top.child("paths"); err != nil {
		return nil, err
	}
	if t.components, err = t.top.child("components"); err != nil {
		return nil, err
	}
	t.kinds = map[string]object{"schemas": {}}
	for kind := range t.components {
		if t.kinds[kind], err = t.components.child(kind); err != nil {
			return nil, err
		}
	}
	t.schemas = newDefinitions(t.kinds["schemas"])
	return &t, nil
}

func (t *taken) add(other *taken) bool {
	changed := t.addPaths(other.paths)
	for _, kind := range slices.Sorted(maps.Keys(other.kinds)) {
		if kind == "schemas" {
			changed = t.schemas.add(other.schemas.byName) || changed
			continue
		}
		if t.kinds[kind] == nil {
			t.kinds[kind] = object{}
		}
		changed = t.kinds[kind].addMissing(other.kinds[kind]) || changed
	}
	return changed
}

func (t *taken) addPaths(from object) bool {
	changed := t.paths.addMissing(from)
	for path, theirs := range from {
		if lacking := lackingOperations(t.paths[path], theirs); lacking != nil {
			t.paths[path] = withOperations(t.paths[path], lacking)
			changed = true
		}
	}
	return changed
}

func (t *taken) encode() []byte {
	for kind, all := range t.kinds {
		t.components.set(kind, all)
	}
	t.top.set("paths", t.paths)
	t.top.set("components", t.components)
	return t.top.encode()
}
