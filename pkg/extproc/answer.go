package extproc

import (
	"bytes"
	"net/http"
	"slices"
	"strconv"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"xds-server/pkg/documents"
)

// ofDocument are the headers that describe a body: the local server's do not describe another one.
var ofDocument = []string{
	"Cache-Control", "Content-Encoding", "Content-Length", "Content-Type", "Etag", "Expires", "Last-Modified", "Location",
	"Retry-After", "Vary", "X-Content-Type-Options",
}

// answer is what a client gets in the place of the local server's answer, or besides it.
type answer struct {
	// result is the metric's label.
	result string
	// localStatus is what the local server said.
	localStatus string
	// status is 0 if the local server's answer stays.
	status int
	header http.Header
	body   []byte
}

// untouched leaves the local server's answer; a document is marked as its own.
func untouched(result, local string) answer {
	a := answer{result: result, localStatus: local}
	switch result {
	case resultLocal:
		a.header = http.Header{documents.Header: {"local"}}
	case resultPartial:
		a.header = http.Header{documents.Header: {"partial"}}
	}
	return a
}

// merged renders a document.
func merged(h http.Handler, req *http.Request, local string) answer {
	w := recorder{header: http.Header{}, status: http.StatusOK}
	h.ServeHTTP(&w, req)
	result := resultMerged
	switch {
	case w.status == http.StatusNotModified:
		result = resultNotModified
	case w.status == http.StatusServiceUnavailable:
		result = resultUnavailable
	case w.header.Get(documents.Header) == "partial":
		result = resultPartial
	}
	return answer{result: result, localStatus: local, status: w.status, header: w.header, body: w.body.Bytes()}
}

// unavailable is the answer where a document exists and can't be given now.
func unavailable(local string) answer {
	return answer{
		result: resultUnavailable, localStatus: local, status: http.StatusServiceUnavailable,
		header: http.Header{"Content-Type": {"application/json"}, "Retry-After": {"1"}},
		body: []byte(`{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","reason":"ServiceUnavailable","code":503,` +
			`"message":"this document exists, but can't be given now: not every kube-apiserver that has it was read","details":{"retryAfterSeconds":1}}` + "\n"),
	}
}

// response is the answer in Envoy's words. A HEAD request gets no body: over HTTP/2 it would break the stream.
func (a answer) response(head bool) *extprocv3.CommonResponse {
	m := mutation{set: a.header}
	if a.status == 0 {
		return changed(m)
	}
	m.set = a.header.Clone()
	m.set[":status"] = []string{strconv.Itoa(a.status)}
	for _, name := range ofDocument {
		if _, ok := a.header[name]; !ok {
			m.remove = append(m.remove, name)
		}
	}
	r := changed(m)
	if !head {
		r.Status = extprocv3.CommonResponse_CONTINUE_AND_REPLACE
		r.BodyMutation = &extprocv3.BodyMutation{Mutation: &extprocv3.BodyMutation_Body{Body: a.body}}
	}
	return r
}

// changed is a mutation in Envoy's words. Of a header with several values the first replaces what was there.
func changed(m mutation) *extprocv3.CommonResponse {
	out := &extprocv3.HeaderMutation{RemoveHeaders: m.remove}
	names := make([]string, 0, len(m.set))
	for name := range m.set {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		for i, v := range m.set[name] {
			out.SetHeaders = append(out.SetHeaders, &corev3.HeaderValueOption{
				Header: &corev3.HeaderValue{Key: name, RawValue: []byte(v)},
				// ext_proc takes no notice of append_action.
				Append: wrapperspb.Bool(i > 0), //nolint:staticcheck // deprecated, and the only one that works
			})
		}
	}
	return &extprocv3.CommonResponse{HeaderMutation: out}
}

// headers are Envoy's as net/http has them, pseudo headers by their own names.
func headers(h *extprocv3.HttpHeaders) http.Header {
	out := http.Header{}
	for _, v := range h.GetHeaders().GetHeaders() {
		value := v.GetValue()
		if len(v.GetRawValue()) > 0 {
			value = string(v.GetRawValue())
		}
		if name := v.GetKey(); len(name) > 0 && name[0] == ':' {
			out[name] = []string{value}
		} else {
			out.Add(name, value)
		}
	}
	return out
}

// recorder keeps what a handler writes.
type recorder struct {
	header http.Header
	status int
	body   bytes.Buffer
}

func (r *recorder) Header() http.Header         { return r.header }
func (r *recorder) WriteHeader(status int)      { r.status = status }
func (r *recorder) Write(b []byte) (int, error) { return r.body.Write(b) }
