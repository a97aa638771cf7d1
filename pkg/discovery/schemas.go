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
	// shown is what of read the observation is made of, and shownETags are its ETags.
	shown      *Documents
	shownETags map[string]string
	// bodies are the documents of OpenAPI v3 that this server was read for, by path.
	bodies map[string]body
	// missing are the hashes of those that it was asked for and did not give, by path.
	missing map[string]string
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
	changed = changed || !maps.Equal(s.missing, r.reading.missing)
	s.missing = r.reading.missing
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

// settlingAtMost is how long a new index of OpenAPI v3 waits for the documents that it leads to, of all servers.
const settlingAtMost = 5 * time.Second

// share says to each worker what to read next, and puts what is known of all servers into their observations. While
// documents of OpenAPI v3 are on their way, those of before stay: what stands for all servers is chosen among them, and
// would change with each that comes.
func (o *owner) share(now time.Time) {
	for _, s := range o.servers {
		if s.observation.View == nil {
			s.otherDocuments = otherDocuments{assigned: s.assigned, wrong: s.wrong}
			s.observation.Documents = nil
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
	coming := false
	for _, s := range o.servers {
		wanted := s.wanted(differing, proven)
		s.assign(wanted, len(o.servers) > 1)
		coming = coming || s.active() && !subset(wanted, s.missing)
	}
	o.settling.update(coming, now)
	for name, s := range o.servers {
		o.metrics.bytes.WithLabelValues(name).Set(float64(s.show(differing, o.settling.goes())))
	}
}

// awaited is whether documents that are on their way are waited for, and until when.
type awaited struct {
	until time.Time
	over  bool
}

func (a *awaited) update(coming bool, now time.Time) {
	switch {
	case !coming:
		*a = awaited{}
	case a.until.IsZero():
		a.until = now.Add(settlingAtMost)
	default:
		a.over = a.over || !now.Before(a.until)
	}
}

func (a *awaited) goes() bool { return !a.until.IsZero() && !a.over }

// ends says that the wait is to be given up now.
func (a *awaited) ends(now time.Time) bool { return a.goes() && !now.Before(a.until) }

func subset(a, of map[string]string) bool {
	for k, v := range a {
		if of[k] != v {
			return false
		}
	}
	return true
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

// wanted says which documents of OpenAPI v3 are missing of a server, and takes those that another one has given.
func (s *server) wanted(differing map[string]bool, proven map[string][]byte) map[string]string {
	var out map[string]string
	if s.read == nil {
		return nil
	}
	for path := range differing {
		schema, ok := s.read.OpenAPIV3[path]
		if !ok {
			continue
		}
		if same := proven[schema.Hash]; same != nil {
			s.bodies[path] = body{hash: schema.Hash, json: same, proven: true}
		}
		if s.bodies[path].json == nil {
			if out == nil {
				out = map[string]string{}
			}
			out[path] = schema.Hash
		}
	}
	return out
}

// show makes a server's Documents and ETags, unless those of before are to stay, and says how many bytes the documents of
// OpenAPI have.
func (s *server) show(differing map[string]bool, stay bool) (size int) {
	if !stay {
		s.showDocuments(differing)
	}
	etags := maps.Clone(s.viewETags)
	if etags == nil {
		etags = map[string]string{}
	}
	maps.Copy(etags, s.shownETags)
	if !maps.Equal(etags, s.observation.ETags) {
		s.observation.ETags = etags
	}
	if s.v2 != nil {
		size = len(s.v2.JSON)
	}
	for _, b := range s.bodies {
		size += len(b.json)
	}
	return size
}

func (s *server) showDocuments(differing map[string]bool) {
	s.shownETags = map[string]string{}
	for path, etag := range map[string]string{"/openapi/v3": s.indexETag, "/openapi/v2": s.v2ETag} {
		if etag != "" {
			s.shownETags[path] = etag
		}
	}
	if s.read == nil {
		s.observation.Documents, s.shown = nil, nil
		return
	}
	next := *s.read
	next.OpenAPIV2, next.OpenAPIV3 = s.v2, maps.Clone(s.read.OpenAPIV3)
	for path := range differing {
		if schema, ok := next.OpenAPIV3[path]; ok {
			schema.JSON = s.bodies[path].json
			next.OpenAPIV3[path] = schema
		}
	}
	if was := s.observation.Documents; was == nil || s.shown != s.read || was.OpenAPIV2 != s.v2 || !maps.EqualFunc(was.OpenAPIV3, next.OpenAPIV3, sameSchema) {
		s.observation.Documents, s.shown = &next, s.read
	}
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
