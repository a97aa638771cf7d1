package documents

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
)

// object is a JSON object whose values are left as they were read: a document is taken apart only as far as it is
// changed, so nothing of it is lost, and what it costs is in proportion to its text.
type object map[string]json.RawMessage

var errNoObject = errors.New("it is no JSON object")

func parseObject(b []byte) (object, error) {
	var o object
	if err := json.Unmarshal(b, &o); err != nil {
		return nil, err
	}
	if o == nil {
		return nil, errNoObject
	}
	return o, nil
}

// child is the object in a field; an empty one if there is none.
func (o object) child(name string) (object, error) {
	raw, ok := o[name]
	if !ok || string(raw) == "null" {
		return object{}, nil
	}
	c, err := parseObject(raw)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return c, nil
}

// encode writes the fields in the order of their names.
func (o object) encode() []byte {
	size := 2
	for name, raw := range o {
		size += len(name) + len(raw) + 4
	}
	out := append(make([]byte, 0, size), '{')
	for i, name := range slices.Sorted(maps.Keys(o)) {
		if i > 0 {
			out = append(out, ',')
		}
		key, _ := json.Marshal(name) // a string always has a JSON form
		out = append(append(append(out, key...), ':'), o[name]...)
	}
	return append(out, '}')
}

// set puts a child back, unless there was none and it is still empty.
func (o object) set(name string, child object) {
	if _, ok := o[name]; ok || len(child) > 0 {
		o[name] = child.encode()
	}
}

// addMissing takes over what is missing, and says whether anything was.
func (o object) addMissing(from object) bool {
	before := len(o)
	for name, raw := range from {
		if _, ok := o[name]; !ok {
			o[name] = raw
		}
	}
	return len(o) != before
}
