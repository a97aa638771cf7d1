package discovery

import (
	"encoding/json"
	"errors"
	"io"
	"net/url"
	"strings"
)

// Limits of the OpenAPI documents of one server, far above real ones (an entry of the index has about 250 bytes, a
// document of a GV some hundred kilobytes).
const (
	maxIndexBytes   = 16 << 20
	maxSchemas      = maxVersions
	maxSchemaPath   = 512
	maxSchemaHash   = 256
	maxOpenAPIBytes = 64 << 20
	// maxBodiesBytes is what all documents of OpenAPI v3 that are kept of one server may have together.
	maxBodiesBytes = 256 << 20
)

// entries says what of a document was left out: how many entries, by reason, and which was the first.
type entries struct {
	dropped map[string]int
	first   string
}

func (e *entries) add(other entries) {
	for reason, n := range other.dropped {
		if e.dropped == nil {
			e.dropped = map[string]int{}
		}
		e.dropped[reason] += n
	}
	if e.first == "" {
		e.first = other.first
	}
}

// parseIndex reads /openapi/v3: which documents there are, and the hash that stands in the URL of each. An entry whose
// URL is not the usual one is left out.
func parseIndex(r io.Reader) (map[string]Schema, entries, error) {
	p := newParser(r)
	out, found := map[string]Schema{}, false
	err := p.whole(func() error {
		return p.object(func(field string) error {
			if field != "paths" {
				return p.skip()
			}
			found = true
			return p.mapping(maxSchemas, func(path string) error { return p.schema(out, path) })
		})
	})
	switch {
	case err != nil:
		return nil, entries{}, err
	case !found:
		return nil, entries{}, errors.New("it has no paths")
	}
	return out, p.left(), nil
}

func (p *parser) schema(out map[string]Schema, path string) error {
	var at string
	err := p.object(func(field string) error {
		if field != "serverRelativeURL" {
			return p.skip()
		}
		return p.decode(&at)
	})
	if err != nil {
		return err
	}
	hash, ok := hashIn(at, path)
	if !ok || !validSchemaPath(path) {
		p.drop(reasonInvalid, "OpenAPI path", path)
		return nil
	}
	out[path] = Schema{Hash: hash}
	return nil
}

// hashIn takes the hash out of a path's URL: "/openapi/v3/apis/apps/v1?hash=…".
func hashIn(at, path string) (string, bool) {
	hash, ok := strings.CutPrefix(at, "/openapi/v3/"+path+"?hash=")
	if !ok || len(hash) == 0 || len(hash) > maxSchemaHash {
		return "", false
	}
	for i := range len(hash) {
		if !alphanumeric(hash[i]) && hash[i] != '-' && hash[i] != '_' {
			return "", false
		}
	}
	return hash, true
}

// validSchemaPath is one that stands in a URL as it is, such as "apis/apps/v1" or ".well-known/openid-configuration".
func validSchemaPath(path string) bool {
	if len(path) > maxSchemaPath || url.PathEscape(path) != strings.ReplaceAll(path, "/", "%2F") {
		return false
	}
	for segment := range strings.SplitSeq(path, "/") {
		if segment == "" || segment == "." || segment == ".." {
			return false
		}
	}
	return true
}

func newParser(r io.Reader) *parser {
	return &parser{dec: json.NewDecoder(r), doc: document{dropped: map[string]int{}}}
}

func (p *parser) left() entries { return entries{p.doc.dropped, p.doc.first} }
