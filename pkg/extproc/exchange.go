package extproc

import (
	"context"
	"net/http"
	"net/url"
	"strings"
	"sync/atomic"
	"time"

	"xds-server/pkg/discovery"
	"xds-server/pkg/documents"
)

// exchange is one request for a document and its answer.
type exchange struct {
	source Source
	// node is whose Envoy asks: its server is the local one.
	node string

	// client is what the client asked for; nil if it is no document.
	client  *http.Request
	handler http.Handler
	verdict documents.Verdict
	// asked is the If-None-Match that the local server was sent instead of the client's.
	asked string
	// cbor says that the client names CBOR. Not every server has it, so the local one is asked as the client asks, for an
	// answer whose Content-Type tells.
	cbor bool
	// offersCBOR says that some server was seen to have CBOR, where the local one has no answer to tell by.
	offersCBOR *atomic.Bool
}

// mutation is what becomes of headers: set ones replace, and whatever is in remove goes.
type mutation struct {
	set    http.Header
	remove []string
}

// request says what the local server is asked: where the document is merged, something of the same path that it
// answers cheaply, since only its status counts.
func (e *exchange) request(h http.Header) mutation {
	target, err := url.ParseRequestURI(h.Get(":path"))
	if err != nil {
		return mutation{}
	}
	accept := strings.Join(h.Values("Accept"), ",")
	if documents.Local(accept) && isAggregated(target.Path) {
		return mutation{}
	}
	e.client = &http.Request{Method: h.Get(":method"), URL: target, Host: h.Get(":authority"), Header: http.Header{}}
	for _, name := range []string{"Accept", "Accept-Encoding", "If-None-Match"} {
		if v := h.Values(name); len(v) > 0 {
			e.client.Header[name] = v
		}
	}
	known := e.source.Documents()
	e.handler, e.verdict = known.Find(target.Path)
	if e.verdict != documents.Merged {
		return mutation{}
	}
	out := mutation{set: http.Header{}, remove: []string{"accept-encoding", "if-modified-since", "range"}}
	e.cbor = strings.Contains(accept, mediaCBOR) && !strings.HasPrefix(target.Path, "/openapi/")
	if isAggregated(target.Path) && !e.cbor {
		// A refusal comes in the form that the client asked for.
		out.set.Set("Accept", strings.TrimSuffix(discovery.Accept+","+accept, ","))
	}
	if e.asked = known.ETag(e.node, target.Path); e.asked == "" || e.cbor {
		out.remove = append(out.remove, "if-none-match")
	} else {
		out.set.Set("If-None-Match", e.asked)
	}
	return out
}

// isAggregated is true for the paths that have an aggregated document. With a slash, /apis has not.
func isAggregated(path string) bool { return path == "/api" || path == "/apis" || path == "/api/" }

// response says what the client gets. The local server's status decides: a refusal, or an error, stays what it is.
func (e *exchange) response(ctx context.Context, h http.Header) answer {
	local := h.Get(":status")
	allowed := local == "200" || local == "304" || local == "301" && e.client != nil && strings.HasPrefix(e.client.URL.Path, "/openapi/")
	if e.client == nil {
		return untouched(resultLocal, local)
	}
	if !allowed && local != "404" {
		return untouched(resultRefused, local)
	}
	if e.cbor {
		e.offered(local, h)
	}
	handler, verdict := e.handler, e.verdict
	if age, outdated := e.outdated(local, h); outdated {
		ctx, cancel := context.WithTimeout(ctx, refreshTimeout)
		defer cancel()
		// A server that can't be read now is known by what it said before.
		_ = e.source.Refresh(ctx, e.node, age)
		if now, v := e.source.Documents().Find(e.client.URL.Path); v == documents.Merged {
			handler, verdict = now, v
		} else if e.verdict != documents.Merged || !allowed {
			handler, verdict = nil, v
		}
	}
	switch {
	case verdict == documents.Merged:
		out := merged(handler, e.client, local)
		if out.status == http.StatusNotFound && local == "200" {
			return e.confirmed(ctx, local)
		}
		return out
	case allowed && verdict == documents.Unread:
		return untouched(resultPartial, local)
	case allowed:
		return untouched(resultLocal, local)
	case verdict == documents.Absent:
		return untouched(resultAbsent, local)
	default:
		return unavailable(local)
	}
}

const mediaCBOR = "application/cbor"

// offered lets the client have CBOR if it would get that of the local server.
func (e *exchange) offered(local string, h http.Header) {
	if local == "200" && strings.HasPrefix(h.Get("Content-Type"), mediaCBOR) {
		e.offersCBOR.Store(true)
	} else if local != "404" || !e.offersCBOR.Load() {
		return
	}
	e.client = documents.OfferCBOR(e.client)
}

// confirmed is the answer where the local server has what no view has: either it lists what nobody serves any more, or
// the views are older than the API.
func (e *exchange) confirmed(ctx context.Context, local string) answer {
	ctx, cancel := context.WithTimeout(ctx, refreshTimeout)
	defer cancel()
	err := e.source.RefreshAll(ctx, 0)
	handler, verdict := e.source.Documents().Find(e.client.URL.Path)
	if verdict == documents.Merged {
		if out := merged(handler, e.client, local); err == nil || out.status != http.StatusNotFound {
			return out
		}
	}
	return unavailable(local)
}

// outdated says whether the local server's answer may tell of something that its view does not have yet, and how old a
// view is that has it. OpenAPI documents are not part of a view.
func (e *exchange) outdated(local string, h http.Header) (age time.Duration, outdated bool) {
	switch {
	case h.Get("X-Kubernetes-Peer-Proxied") == "true":
		return 0, false // the local server is away
	case strings.HasPrefix(e.client.URL.Path, "/openapi/"):
		return 0, false
	case local == "304" || local == "301":
		return 0, false
	case local == "200" && e.verdict == documents.Merged && (e.asked == "" || e.cbor && h.Get("Etag") == ""):
		return legacyAge, true // without an ETag it does not tell
	case local == "200":
		return 0, e.asked == "" || h.Get("Etag") != e.asked
	default: // 404
		return 0, e.verdict == documents.Same || e.verdict == documents.Unread
	}
}

func (e *exchange) head() bool { return e.client != nil && e.client.Method == http.MethodHead }

func (e *exchange) path() string {
	if e.client == nil {
		return ""
	}
	return e.client.URL.Path
}
