package documents

import (
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"

	apidiscoveryv2 "k8s.io/api/apidiscovery/v2"

	"xds-server/pkg/discovery"
)

const (
	openAPIV2 = "/openapi/v2"
	openAPIV3 = "/openapi/v3"
)

// openAPI is the OpenAPI documents of one moment. Which documents there are is known at once; what is in them is put
// together when it is first asked for, but for OpenAPI v2, which is begun in the background.
type openAPI struct {
	servers map[string]discovery.Observation
	// schemas are the documents of OpenAPI v3, by their path in the index.
	schemas map[string]*schemaDocument
	// served are the paths of the documents of versions that some server has as Current.
	served map[string]bool
	// sameIndex says that every server has the same index.
	sameIndex bool
	// unread says that there is a server whose documents were not read yet.
	unread bool
	index  func() *content
	v2     *swagger

	lock    sync.Mutex
	leftOut map[string]error
}

// newOpenAPI makes the documents from those that servers have; merged says what there is to be in them. What it lacks is
// known to be gone only if it is complete.
func newOpenAPI(observations []discovery.Observation, merged *discovery.View, complete bool) *openAPI {
	o := &openAPI{
		unread:  !complete,
		servers: make(map[string]discovery.Observation, len(observations)),
		schemas: map[string]*schemaDocument{},
		leftOut: map[string]error{},
	}
	var read []discovery.Observation
	for _, server := range observations {
		o.servers[server.Server.Name] = server
		switch {
		case server.Documents != nil && server.Documents.OpenAPIV3 != nil:
			read = append(read, server)
		case server.View != nil:
			o.unread = true
		}
	}
	o.sameIndex = true
	for _, server := range read {
		if !sameHashes(server.Documents.OpenAPIV3, read[0].Documents.OpenAPIV3) {
			o.sameIndex = false
		}
		for path := range server.Documents.OpenAPIV3 {
			if o.schemas[path] != nil {
				continue
			}
			if d := newSchemaDocument(path, read, merged); !complete || !d.gone {
				d.choose = sync.OnceValue(func() choice { return o.noted(path, d.pick()) })
				o.schemas[path] = d
			}
		}
	}
	o.served = map[string]bool{}
	for _, g := range merged.Groups {
		for _, v := range g.Versions {
			switch {
			case v.Freshness == apidiscoveryv2.DiscoveryFreshnessStale:
			case g.Name == "":
				o.served[openAPIV3+"/api/"+v.Version] = true
			default:
				o.served[openAPIV3+"/apis/"+g.Name+"/"+v.Version] = true
			}
		}
	}
	o.index = sync.OnceValue(func() *content { return newIndex(o.schemas) })
	o.v2 = newSwagger(observations)
	return o
}

func sameHashes(a, b map[string]discovery.Schema) bool {
	return maps.EqualFunc(a, b, func(a, b discovery.Schema) bool { return a.Hash == b.Hash })
}

// find returns what is known of an OpenAPI document, and its handler if it is Merged. What a server has that was not read
// yet may be another document, or one that no other server has.
func (o *openAPI) find(path string) (http.Handler, Verdict) {
	h, verdict := o.findRead(path)
	if o.unread && (verdict == Same || verdict == Absent) {
		return nil, Unread
	}
	return h, verdict
}

func (o *openAPI) findRead(path string) (http.Handler, Verdict) {
	switch path {
	case openAPIV2:
		return o.v2.find()
	case openAPIV3:
		switch {
		case len(o.schemas) == 0:
			return nil, Absent
		case o.sameIndex:
			return nil, Same
		}
		return http.HandlerFunc(o.serveIndex), Merged
	}
	d := o.schemas[strings.TrimPrefix(path, openAPIV3+"/")]
	if d == nil && o.served[path] {
		return nil, Unread // what serves it was not asked for it since
	}
	switch {
	case d == nil || !strings.HasPrefix(path, openAPIV3+"/"):
		return nil, Absent
	case d.same:
		return nil, Same
	}
	chosen := d.choose()
	if chosen.content == nil {
		return nil, Unread
	}
	return schemaHandler{d.path, chosen.content}, Merged
}

// differ says that some server has another OpenAPI document than the others, so at most one of them is as it is here.
func (o *openAPI) differ() bool { return !o.sameIndex || o.v2.differ() }

// etag is the server's own ETag for its document as JSON: for a document of OpenAPI v3 the hash that its index gives.
func (o *openAPI) etag(server, path string) string {
	s := o.servers[server]
	if in, ok := strings.CutPrefix(path, openAPIV3+"/"); ok {
		if s.Documents != nil {
			if d, ok := s.Documents.OpenAPIV3[in]; ok {
				return `"` + d.Hash + `"`
			}
		}
		return ""
	}
	return s.ETags[path]
}

// noted keeps what a choice had to leave out, for problems.
func (o *openAPI) noted(path string, c choice) choice {
	if c.err != nil {
		o.lock.Lock()
		defer o.lock.Unlock()
		o.leftOut[path] = c.err
	}
	return c
}

// problems returns why servers' documents are left out of those that were put together until now.
func (o *openAPI) problems() []error {
	o.lock.Lock()
	defer o.lock.Unlock()
	var out []error
	for _, path := range slices.Sorted(maps.Keys(o.leftOut)) {
		out = append(out, o.leftOut[path])
	}
	if err := o.v2.problem(); err != nil {
		out = append(out, err)
	}
	return out
}

// Problems returns why servers' documents are left out of the merged ones, as far as those were asked for. There are none
// as long as servers' documents are what they should be.
func (s *Set) Problems() []error { return s.openAPI.problems() }
