package documents

import (
	"bytes"
	"encoding/json"
	"reflect"
	"slices"
)

// operations are the fields of a path's item that are one method each, in OpenAPI v2 and v3.
var operations = []string{"get", "put", "post", "delete", "options", "head", "patch", "trace"}

// lackingOperations is the part of their item of a path that ours has not: the methods, with the parameters that all of
// theirs share. It is nil if there are none, or if one of the two is no item.
func lackingOperations(ours, theirs json.RawMessage) object {
	if bytes.Equal(ours, theirs) {
		return nil
	}
	o, err := parseObject(ours)
	if err != nil {
		return nil
	}
	t, err := parseObject(theirs)
	if err != nil {
		return nil
	}
	out := object{}
	for _, method := range operations {
		if theirs, ok := t[method]; ok && o[method] == nil {
			out[method] = theirs
		}
	}
	if len(out) == 0 {
		return nil
	}
	if shared, ok := t["parameters"]; ok {
		out["parameters"] = shared
	}
	return out
}

// withOperations adds them to our item. Parameters that all of theirs share are given to each, if ours share others.
func withOperations(ours json.RawMessage, lacking object) json.RawMessage {
	o, err := parseObject(ours)
	if err != nil {
		return ours
	}
	shared := list(lacking["parameters"])
	if reflect.DeepEqual(values(shared), values(list(o["parameters"]))) {
		shared = nil
	}
	for _, method := range operations {
		if operation, ok := lacking[method]; ok {
			o[method] = withParameters(operation, shared)
		}
	}
	return o.encode()
}

func withParameters(operation json.RawMessage, shared []json.RawMessage) json.RawMessage {
	o, err := parseObject(operation)
	if err != nil || len(shared) == 0 {
		return operation
	}
	own := list(o["parameters"])
	all := slices.DeleteFunc(slices.Clone(shared), func(p json.RawMessage) bool {
		return slices.ContainsFunc(own, func(q json.RawMessage) bool { return bytes.Equal(p, q) })
	})
	o["parameters"], _ = json.Marshal(append(all, own...)) // what was read can be written
	return o.encode()
}

// list reads a JSON list; what is none is empty.
func list(b json.RawMessage) []json.RawMessage {
	var out []json.RawMessage
	if json.Unmarshal(b, &out) != nil {
		return nil
	}
	return out
}

func values(list []json.RawMessage) []any {
	var out []any
	for _, b := range list {
		var v any
		_ = json.Unmarshal(b, &v) // it was read before
		out = append(out, v)
	}
	return out
}
