package documents

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"

	"k8s.io/apiserver/pkg/endpoints/handlers/negotiation"
	"k8s.io/kube-openapi/pkg/aggregator"
	"k8s.io/kube-openapi/pkg/validation/spec"

	"xds-server/pkg/discovery"
)

// swaggers are united documents of OpenAPI v2: as JSON and, where it was asked for, in protobuf.
var swaggers = newWorks(4)

// swagger is /openapi/v2.
type swagger struct {
	// documents are those of all servers, each once, sorted by hash.
	documents []*discovery.OpenAPIV2
	// unread says that there is a server whose document is not read yet, though its view is.
	unread bool
	key    string
}

func newSwagger(observations []discovery.Observation) *swagger {
	s := &swagger{}
	for _, o := range observations {
		switch {
		case o.Documents != nil && o.Documents.OpenAPIV2 != nil:
			s.documents = append(s.documents, o.Documents.OpenAPIV2)
		case o.View != nil:
			s.unread = true
		}
	}
	byHash := func(a, b *discovery.OpenAPIV2) int { return cmp.Compare(a.Hash, b.Hash) }
	slices.SortFunc(s.documents, byHash)
	s.documents = slices.CompactFunc(s.documents, func(a, b *discovery.OpenAPIV2) bool { return a.Hash == b.Hash })
	for _, d := range s.documents {
		s.key += d.Hash + " "
	}
	if s.differ() && !s.unread {
		s.united()
	}
	return s
}

func (s *swagger) differ() bool { return len(s.documents) > 1 }

// united begins to unite the documents, or finds what was begun before.
func (s *swagger) united() *work {
	documents := s.documents
	return swaggers.get(s.key, func() (*content, error) {
		body, err := uniteV2(documents)
		if body == nil {
			return nil, err
		}
		c := newContent(mediaJSON, body)
		if protobufAsked.Load() && c.convertible() {
			s.protobuf(body)
		}
		return c, err
	})
}

// protobufAsked says that clients ask for protobuf, so that it is begun as soon as there is a document.
var protobufAsked atomic.Bool

func (s *swagger) protobuf(json []byte) *work {
	return swaggers.get(s.key+"protobuf", func() (*content, error) { return protobufV2(json) })
}

// problem is why documents were left out of the united one.
func (s *swagger) problem() error {
	if !s.differ() || s.unread {
		return nil
	}
	w := s.united()
	select {
	case <-w.done:
		if errors.Is(w.err, errDropped) {
			return nil
		}
		return w.err
	default:
		return nil
	}
}

func (s *swagger) find() (http.Handler, Verdict) {
	switch {
	case s.unread:
		return nil, Unread
	case len(s.documents) == 0:
		return nil, Absent
	case !s.differ():
		return nil, Same
	}
	if s.united().failed() {
		return nil, Unread
	}
	return http.HandlerFunc(s.serve), Merged
}

func (s *swagger) serve(w http.ResponseWriter, req *http.Request) {
	w.Header().Set("Vary", "Accept")
	w.Header().Set("Cache-Control", cachePrivate)
	media := acceptable(req, mediaProtobufV2)
	if media == "" {
		refuse(w, negotiation.NewNotAcceptableError([]string{mediaJSON, mediaProtobufV2}))
		return
	}
	// One deadline for both, since Envoy waits for the answer no longer than 5 s.
	ctx, cancel := context.WithTimeout(req.Context(), patience)
	defer cancel()
	done := s.united()
	c := done.wait(ctx, patience)
	if c != nil {
		if media = c.offered(w, req, media); media == "" {
			return
		}
	}
	if c != nil && media != mediaJSON {
		protobufAsked.Store(true)
		done = s.protobuf(c.body)
		c = done.wait(ctx, patience)
	}
	if c == nil {
		unavailable(w, done)
		return
	}
	c.serve(w, req)
}

// uniteV2 completes the document that has most paths with what only others have. Documents that can't be taken apart are
// left out, with an error; the body is nil if there is no other.
func uniteV2(documents []*discovery.OpenAPIV2) ([]byte, error) {
	var all []*takenV2
	var left []error
	for _, d := range documents {
		t, err := takeApartV2(d)
		if err != nil {
			left = append(left, fmt.Errorf("reading OpenAPI v2 with hash %.20s: %w", d.Hash, err))
			continue
		}
		all = append(all, t)
	}
	if len(all) == 0 {
		return nil, errors.Join(left...)
	}
	slices.SortFunc(all, func(a, b *takenV2) int {
		return cmp.Or(-cmp.Compare(len(a.paths), len(b.paths)), cmp.Compare(a.source.Hash, b.source.Hash))
	})
	base, changed := all[0], false
	definitions := newDefinitions(base.named["definitions"])
	for _, t := range all[1:] {
		more, err := base.add(t)
		if err != nil {
			left = append(left, fmt.Errorf("uniting OpenAPI v2 with hash %.20s: %w", t.source.Hash, err))
			continue
		}
		changed = definitions.add(t.named["definitions"]) || more || changed
	}
	if !changed {
		return base.source.JSON, errors.Join(left...)
	}
	return base.encode(), errors.Join(left...)
}

// takenV2 is a document of OpenAPI v2, taken apart.
type takenV2 struct {
	source     *discovery.OpenAPIV2
	top, paths object
	named      map[string]object
}

// namedV2 are the fields that hold what paths refer to by name.
var namedV2 = []string{"definitions", "parameters", "responses", "securityDefinitions"}

func takeApartV2(d *discovery.OpenAPIV2) (*takenV2, error) {
	t := &takenV2{source: d, named: map[string]object{}}
	var err error
	if t.top, err = parseObject(d.JSON); err != nil {
		return nil, err
	}
	if t.paths, err = t.top.child("paths"); err != nil {
		return nil, err
	}
	for _, name := range namedV2 {
		if t.named[name], err = t.top.child(name); err != nil {
			return nil, err
		}
	}
	return t, nil
}

// add takes over the paths and methods that are missing, and the parameters that they refer to: kube-openapi renames those whose name
// means something else here. Only what is missing is handed to it, since a whole document of its types is 20 times as
// large as its text.
func (t *takenV2) add(other *takenV2) (changed bool, err error) {
	missing := object{}
	for path, item := range other.paths {
		ours, ok := t.paths[path]
		switch lacking := lackingOperations(ours, item); {
		case !strings.HasPrefix(path, "/"):
		case !ok:
			missing[path] = item
		case lacking != nil:
			missing[path] = lacking.encode()
		}
	}
	if len(missing) > 0 {
		united, err := mergePaths(t.named["parameters"], missing, other.named["parameters"])
		if err != nil {
			return false, err
		}
		for path, item := range united.paths {
			ours, ok := t.paths[path]
			if ok {
				lacking, err := parseObject(item)
				if err != nil {
					return false, err
				}
				item = withOperations(ours, lacking)
			}
			t.paths[path] = item
		}
		t.named["parameters"].addMissing(united.named["parameters"])
		changed = true
	}
	for _, name := range []string{"responses", "securityDefinitions"} {
		changed = t.named[name].addMissing(other.named[name]) || changed
	}
	return changed, nil
}

func mergePaths(ours, paths, parameters object) (*takenV2, error) {
	var dest, source spec.Swagger
	if err := dest.UnmarshalJSON(object{"parameters": ours.encode()}.encode()); err != nil {
		return nil, err
	}
	if err := source.UnmarshalJSON(object{"paths": paths.encode(), "parameters": parameters.encode()}.encode()); err != nil {
		return nil, err
	}
	var body []byte
	err := guarded(func() error {
		err := aggregator.MergeSpecsIgnorePathConflictRenamingDefinitionsAndParameters(&dest, &source)
		if err == nil {
			body, err = dest.MarshalJSON()
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	return takeApartV2(&discovery.OpenAPIV2{JSON: body})
}

func (t *takenV2) encode() []byte {
	t.top.set("paths", t.paths)
	for _, name := range namedV2 {
		t.top.set(name, t.named[name])
	}
	return t.top.encode()
}
