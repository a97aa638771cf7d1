package discovery

import (
	"maps"
	"time"

	"go.uber.org/zap"
)

var documentsResults = []string{resultRead, resultConfirmed, resultUnready, resultUnreachable, resultRefused, resultInvalid}

// otherDocuments is what the owner knows of a server's other documents.
type otherDocuments struct {
	assigned  *assigned
	viewETags map[string]string

	// read are the last documents, without any of OpenAPI; nil until there are some.
	read      *Documents
	indexETag string
	v2        *OpenAPIV2
	v2ETag    string
	// shown is what of read the observation is made of.
	shown *Documents
	// bodies are the documents of OpenAPI v3 that this server was read for, by path.
	bodies map[string]body
	// wrong is the last thing that was logged, so that it is said once.
	wrong string
}

// documentsResult takes what a read of a server's other documents gave.
func (o *owner) documentsResult(r documentsResult, now time.Time) (changed bool) {
	s, name := r.server, r.server.observation.Server.Name
	if o.servers[name] != s || s.worker != r.worker {
		return false // forgotten, or read at another address, in the meantime
	}
	o.metrics.observeDocuments(name, r.reading, now)
	o.logDocuments(s, r.reading)
	if r.reading.documents == nil || !s.active() {
		return false // what was read of one that isn't any more is read again once it is
	}
	changed = s.read != r.reading.documents || s.indexETag != r.reading.indexETag || r.reading.v2 != nil || len(r.reading.bodies) > 0
	s.read, s.indexETag = r.reading.documents, r.reading.indexETag
	if r.reading.v2 != nil {
		s.v2, s.v2ETag = o.sharedV2(r.reading.v2), r.reading.v2ETag
	}
	if s.bodies == nil {
		s.bodies = map[string]body{}
	}
	maps.Copy(s.bodies, r.reading.bodies)
	return changed
}

func (o *owner) logDocuments(s *server, r documentsReading) {
	wrong := ""
	if r.err != nil {
		wrong = r.result + " " + r.what
	}
	fields := []zap.Field{zap.String("server", s.observation.Server.Name), zap.String("address", s.address)}
	switch {
	case wrong != "" && wrong != s.wrong:
		o.o.Log.Warn("a kube-apiserver's legacy discovery or OpenAPI can't be read whole, what was last read of it counts on",
			append(fields, zap.String("result", r.result), zap.Error(r.err))...)
	case wrong == "" && s.wrong != "":
		o.o.Log.Info("a kube-apiserver's legacy discovery and OpenAPI can be read again", fields...)
	}
	if r.first != "" {
		o.o.Log.Warn("entries of a kube-apiserver's legacy discovery or OpenAPI are left out",
			append(fields, zap.Any("entries", r.dropped), zap.String("first", r.first))...)
	}
	s.wrong = wrong
}

// active says that a server's other documents are to be read: they are of use only beside a view.
func (s *server) active() bool { return s.observation.Ready && s.observation.View != nil }

// sharedV2 is the document of another server if that is the same, so that it is kept once. Its hash is the content's own.
func (o *owner) sharedV2(d *OpenAPIV2) *OpenAPIV2 {
	for _, s := range o.servers {
		if s.v2 != nil && s.v2.Hash == d.Hash {
			return s.v2
		}
	}
	return d
}

// share puts what is known of all servers into their observations, and says to each worker what to read next.
func (o *owner) share() {
	for _, s := range o.servers {
		if s.observation.View == nil {
			s.otherDocuments = otherDocuments{assigned: s.assigned, wrong: s.wrong}
		}
	}
	differing, proven := o.differing(), map[string][]byte{}
	for _, s := range o.servers {
		maps.DeleteFunc(s.bodies, func(path string, b body) bool { return !differing[path] || s.read.OpenAPIV3[path].Hash != b.hash })
		for path, b := range s.bodies {
			if !b.proven {
				continue
			}
			if same, ok := proven[b.hash]; ok {
				b.json = same
				s.bodies[path] = b
			}
			proven[b.hash] = b.json
		}
	}
	for name, s := range o.servers {
		wanted, size := s.show(differing, proven)
		o.metrics.bytes.WithLabelValues(name).Set(float64(size))
		s.assign(wanted, len(o.servers) > 1)
	}
}

// differing are the paths of OpenAPI v3 that some server that was read has, and some other has not, or otherwise.
func (o *owner) differing() map[string]bool {
	type hash struct {
		of      string
		servers int
	}
	servers, first, out := 0, map[string]hash{}, map[string]bool{}
	for _, s := range o.servers {
		if s.read == nil {
			continue
		}
		servers++
		for path, schema := range s.read.OpenAPIV3 {
			h, ok := first[path]
			if ok && h.of != schema.Hash {
				out[path] = true
			}
			first[path] = hash{schema.Hash, h.servers + 1}
		}
	}
	for path, h := range first {
		if h.servers < servers {
			out[path] = true
		}
	}
	return out
}

// show makes a server's Documents and ETags, and says which documents of OpenAPI v3 are missing in them and how many
// bytes those of OpenAPI have.
func (s *server) show(differing map[string]bool, proven map[string][]byte) (wanted map[string]string, size int) {
	etags := maps.Clone(s.viewETags)
	if etags == nil {
		etags = map[string]string{}
	}
	for path, etag := range map[string]string{"/openapi/v3": s.indexETag, "/openapi/v2": s.v2ETag} {
		if etag != "" {
			etags[path] = etag
		}
	}
	if !maps.Equal(etags, s.observation.ETags) {
		s.observation.ETags = etags
	}
	if s.read == nil {
		s.observation.Documents = nil
		return nil, 0
	}
	next := *s.read
	next.OpenAPIV2, next.OpenAPIV3 = s.v2, maps.Clone(s.read.OpenAPIV3)
	if s.v2 != nil {
		size = len(s.v2.JSON)
	}
	for path := range differing {
		schema, ok := next.OpenAPIV3[path]
		if !ok {
			continue
		}
		if same := proven[schema.Hash]; same != nil {
			s.bodies[path] = body{hash: schema.Hash, json: same, proven: true}
		}
		schema.JSON = s.bodies[path].json
		if schema.JSON == nil {
			if wanted == nil {
				wanted = map[string]string{}
			}
			wanted[path] = schema.Hash
		}
		size += len(schema.JSON)
		next.OpenAPIV3[path] = schema
	}
	if was := s.observation.Documents; was == nil || s.shown != s.read || was.OpenAPIV2 != s.v2 || !maps.EqualFunc(was.OpenAPIV3, next.OpenAPIV3, sameSchema) {
		s.observation.Documents, s.shown = &next, s.read
	}
	return wanted, size
}

// sameSchema says that it is the same, and not only equal.
func sameSchema(a, b Schema) bool {
	return a.Hash == b.Hash && len(a.JSON) == len(b.JSON) && (len(a.JSON) == 0 || &a.JSON[0] == &b.JSON[0])
}

// assign tells a server's worker what is wanted of it, and wakes it if that is more than before.
func (s *server) assign(wanted map[string]string, peers bool) {
	was := s.assigned.last.Load()
	next := assignment{active: s.active(), incarnation: was.incarnation, view: s.observation.View, v2ETag: s.v2ETag, wanted: wanted, budget: maxBodiesBytes, peers: peers}
	for _, b := range s.bodies {
		next.budget -= int64(len(b.json))
	}
	if next.active && !was.active {
		next.incarnation++
	}
	more := next.incarnation != was.incarnation || next.view != was.view
	for path, hash := range wanted {
		more = more || was.wanted[path] != hash
	}
	s.assigned.set(next, more)
}
