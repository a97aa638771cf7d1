package extproc

import (
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
)

// Some servers have documents in CBOR. A client that asks for it is answered as its local server would.
func TestADocumentIsInCBORWhereTheLocalServerHasIt(t *testing.T) {
	const (
		cbor   = "application/cbor"
		asCBOR = cbor + ";g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"
	)
	for name, tt := range map[string]struct {
		path, accept       string
		local, contentType string
		seen               bool
		want               string
		status             int
		media              string
	}{
		"it has it, aggregated": {path: "/apis", accept: asCBOR, local: "200", contentType: asCBOR, want: resultMerged, status: 200, media: asCBOR},
		"it has it":             {path: "/apis/apps/v1", accept: cbor, local: "200", contentType: cbor, want: resultMerged, status: 200, media: cbor},
		"it has it not":         {path: "/apis", accept: asCBOR, local: "406", want: resultRefused},
		"it has it not, and the client takes JSON":       {path: "/apis", accept: asCBOR + "," + aggregated, local: "200", contentType: aggregated, want: resultMerged, status: 200, media: aggregated},
		"the client prefers JSON":                        {path: "/apis/apps/v1", accept: "application/json," + cbor, local: "200", contentType: "application/json", want: resultMerged, status: 200, media: "application/json"},
		"only a peer serves it, and servers have CBOR":   {path: "/apis/storage/v1", accept: cbor, local: "404", seen: true, want: resultMerged, status: 200, media: cbor},
		"only a peer serves it, and none has CBOR":       {path: "/apis/storage/v1", accept: cbor, local: "404", want: resultMerged, status: 406, media: "application/json"},
		"some server has CBOR, but not this one":         {path: "/apis/apps/v1", accept: cbor + ",application/json", local: "200", contentType: "application/json", seen: true, want: resultMerged, status: 200, media: "application/json"},
		"a client that may not read it":                  {path: "/apis", accept: asCBOR, local: "403", want: resultRefused},
		"the local server's own":                         {path: "/apis", accept: asCBOR + ";profile=nopeer", local: "200", contentType: asCBOR, want: resultLocal},
		"nothing is in CBOR of a client that names none": {path: "/apis/storage/v1", accept: "*/*", local: "404", seen: true, want: resultMerged, status: 200, media: "application/json"},
	} {
		t.Run(name, func(t *testing.T) {
			e := exchange{source: &fakeSource{now: upgrade()}, node: "old", offersCBOR: new(atomic.Bool)}
			e.offersCBOR.Store(tt.seen)
			asked := e.request(http.Header{":method": {"GET"}, ":path": {tt.path}, "Accept": {tt.accept}, "If-None-Match": {`"mine"`}})
			if got := asked.set.Get("Accept"); got != "" {
				t.Errorf("the local server is asked for %q in its place", got)
			}
			if tt.want != resultLocal && !slices.Contains(asked.remove, "if-none-match") && tt.accept != "*/*" {
				t.Error("the local server may answer 304, which tells no media type")
			}
			a := e.response(t.Context(), http.Header{":status": {tt.local}, "Content-Type": {tt.contentType}, "Etag": {`"o"`}})
			if a.result != tt.want || a.status != tt.status || a.header.Get("Content-Type") != tt.media {
				t.Errorf("%s, %d as %q, want %s, %d as %q", a.result, a.status, a.header.Get("Content-Type"), tt.want, tt.status, tt.media)
			}
			if got := e.offersCBOR.Load(); got != (tt.seen || tt.status == 200 && strings.HasPrefix(tt.contentType, cbor)) {
				t.Errorf("it is known that a server has CBOR: %v", got)
			}
		})
	}
}

// What the client has already is not sent again, in CBOR too.
func TestADocumentInCBORThatTheClientHasIs304(t *testing.T) {
	e := exchange{source: &fakeSource{now: upgrade()}, node: "old", offersCBOR: new(atomic.Bool)}
	e.request(http.Header{":method": {"GET"}, ":path": {"/apis/apps/v1"}, "Accept": {"application/cbor"}, "If-None-Match": {"*"}})
	if a := e.response(t.Context(), http.Header{":status": {"200"}, "Content-Type": {"application/cbor"}}); a.status != 304 {
		t.Errorf("%s, %d", a.result, a.status)
	}
}
