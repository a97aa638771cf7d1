// Package documents renders the discovery documents of the whole control plane from what is known of its servers, as a
// kube-apiserver would render them. It is pure: what is observed goes in, handlers come out, and equal observations give
// equal bytes on every replica, whatever their order and the servers' names.
package documents

import (
	"net/http"
	"strings"

	apidiscoveryv2 "k8s.io/api/apidiscovery/v2"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"xds-server/pkg/discovery"
)

// Header tells clients what they got: "merged", or "partial" while some server that exists was never read; of OpenAPI,
// while such documents of one that is there were not read yet.
const Header = "X-Kubernetes-Discovery"

// Set is all documents of one moment. It doesn't change and is safe for concurrent use; documents are rendered when they
// are first asked for.
type Set struct {
	header string
	// complete says that no server that exists was never read.
	complete bool
	// leftOut says that servers list more than is known here, so that the documents of everything are partial.
	leftOut bool
	pages   map[string]page
	etags   map[string]map[string]string
	openAPI *openAPI
	differ  bool
}

// page is what is known of one path; handler is there only if it is Merged.
type page struct {
	handler http.Handler
	verdict Verdict
}

// Compile makes the documents from what is known of each server. complete is false while some server that exists was
// never read: what other servers list and nobody is known to serve may be that server's.
func Compile(observations []discovery.Observation, complete bool) *Set {
	known := unite(observations, complete)
	s := &Set{
		header:   "merged",
		complete: complete,
		pages:    map[string]page{},
		etags:    make(map[string]map[string]string, len(observations)),
		openAPI:  newOpenAPI(observations, known.view, complete),
	}
	if !complete {
		s.header = "partial"
	}
	for _, o := range observations {
		s.etags[o.Server.Name] = o.ETags
	}
	s.compile(known)
	// What an unread server has is in no document, so no server's own is known to be whole either.
	s.differ = known.servers > 0 && !complete || known.differs(observations) || s.openAPI.differ()
	return s
}

func (s *Set) compile(known *known) {
	if known.servers == 0 {
		// What is listed may well be served, but nothing is known to be.
		for gv := range known.listed {
			s.pages["/apis/"+gv.Group+"/"+gv.Version] = page{verdict: Unread}
		}
		return
	}
	groups := known.view.Groups
	if len(groups) > 0 && groups[0].Name == "" {
		core := groups[0]
		s.render("/api", &document{
			aggregated: aggregatedForm(groups[:1]),
			legacy:     legacyForm(func() runtime.Object { return versions(core, known.addresses) }),
		})
		s.versions("/api/", known, groups[:1])
		groups = groups[1:]
	}
	list := legacyForm(func() runtime.Object { return known.view.GroupList() })
	s.render("/apis", &document{aggregated: aggregatedForm(groups), legacy: list})
	// With a slash, a kube-apiserver has the legacy form only.
	s.render("/apis/", &document{legacy: list})
	for _, group := range groups {
		s.render("/apis/"+group.Name, &document{
			legacy: legacyForm(func() runtime.Object { return known.view.Group(group.Name) }),
		})
	}
	s.versions("/apis/", known, groups)
	s.leftOut = len(known.view.Partial) > 0
	for gv := range known.listed {
		path := "/apis/" + gv.Group
		if _, served := s.pages[path]; !served {
			s.pages[path] = page{http.HandlerFunc(notFound), Merged}
		}
	}
}

// versions adds the documents of each version: those that can't be rendered are the Stale ones, whose resources are not
// known, and those of which something was left out.
func (s *Set) versions(prefix string, known *known, groups []apidiscoveryv2.APIGroupDiscovery) {
	for _, group := range groups {
		if group.Name != "" && known.view.Partial[schema.GroupVersion{Group: group.Name}] {
			s.pages[prefix+group.Name] = page{verdict: Unread}
		}
		for _, v := range group.Versions {
			gv := schema.GroupVersion{Group: group.Name, Version: v.Version}
			path := prefix + v.Version
			if group.Name != "" {
				path = prefix + group.Name + "/" + v.Version
			}
			if v.Freshness == apidiscoveryv2.DiscoveryFreshnessStale || known.view.Partial[gv] {
				s.pages[path] = page{verdict: Unread}
				continue
			}
			s.render(path, &document{
				legacy: legacyForm(func() runtime.Object { return known.resources(gv) }),
			})
		}
	}
}

func (s *Set) render(path string, d *document) { s.pages[path] = page{d, Merged} }

// Differ says that some server with a view shows, in some document, something else than what is rendered here, or that this
// is not known since a server was never read. Addresses in the legacy /api don't count: they are each server's own.
func (s *Set) Differ() bool { return s.differ }

// Unread says that there is a server some of whose OpenAPI documents were not read yet.
func (s *Set) Unread() bool { return s.openAPI.unread || s.openAPI.v2.unread }

// Find returns what is known of the document at a decoded path without query. The handler, which is there only if the
// verdict is Merged, expects a GET or HEAD. Its 404 is for a group that the servers' shared objects list and that no view
// has: all its servers are gone or, rarely and for a moment, it is newer than the views.
func (s *Set) Find(path string) (http.Handler, Verdict) {
	handler, verdict := s.find(path)
	if verdict != Merged {
		return nil, verdict
	}
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		header := s.header
		if s.openAPI.unread && strings.HasPrefix(path, "/openapi/") || s.leftOut && strings.Count(strings.TrimRight(path, "/"), "/") == 1 {
			header = "partial"
		}
		w.Header().Set(Header, header)
		if req.Method == http.MethodHead {
			w = bodiless{w}
		}
		handler.ServeHTTP(w, req)
	}), Merged
}

func (s *Set) find(path string) (http.Handler, Verdict) {
	if strings.HasPrefix(path, "/openapi/") {
		return s.openAPI.find(path)
	}
	path = canonical(path)
	p := s.pages[path]
	if p.verdict == Absent && !s.complete && isVersionOrGroup(path) {
		// A server that was never read may have it: unknown is not absent.
		p.verdict = Unread
	}
	return p.handler, p.verdict
}

// isVersionOrGroup says whether a path is that of some version's or group's document.
func isVersionOrGroup(path string) bool {
	if version, ok := strings.CutPrefix(path, "/api/"); ok {
		return version != "" && !strings.Contains(version, "/")
	}
	name, ok := strings.CutPrefix(path, "/apis/")
	return ok && name != "" && strings.Count(name, "/") < 2
}

// ETag is the server's own ETag for the JSON form of the document at a path (/apis and /api: aggregated, and without
// peers); empty if it isn't known.
func (s *Set) ETag(server, path string) string {
	if strings.HasPrefix(path, "/openapi/") {
		return s.openAPI.etag(server, path)
	}
	return s.etags[server][canonical(path)]
}

// canonical is the path under which a document stands: slashes at the end make no difference, but for /apis.
func canonical(path string) string {
	trimmed := strings.TrimRight(path, "/")
	if trimmed == "/apis" && path != trimmed {
		return "/apis/"
	}
	return trimmed
}

// bodiless leaves the body out of an answer to HEAD: whoever passes the answer on need not know that.
type bodiless struct{ http.ResponseWriter }

func (bodiless) Write(b []byte) (int, error) { return len(b), nil }

// notFound is a kube-apiserver's 404 for what it doesn't know.
func notFound(w http.ResponseWriter, req *http.Request) {
	w.Header().Set("Cache-Control", cachePrivate)
	http.NotFound(w, req)
}
