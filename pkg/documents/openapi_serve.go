package documents

import (
	"encoding/json"
	"net/http"
	"net/url"
	"path"
	"strings"
	"time"

	openapi_v2 "github.com/google/gnostic-models/openapiv2"
	openapi_v3 "github.com/google/gnostic-models/openapiv3"
	"github.com/munnerz/goautoneg"
	"google.golang.org/protobuf/proto"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apiserver/pkg/endpoints/handlers/negotiation"
	"k8s.io/kube-openapi/pkg/handler3"
)

const (
	mediaJSON       = "application/json"
	mediaProtobufV2 = "application/com.github.proto-openapi.spec.v2.v1.0+protobuf"
	mediaProtobufV3 = "application/com.github.proto-openapi.spec.v3.v1.0+protobuf"
)

// patience is how long a request waits for a document that is being put together: less than Envoy waits for the answer.
const patience = 4 * time.Second

// protobufs are documents of OpenAPI v3 in protobuf, which only some clients ask for.
var protobufs = newWorks(32)

// newIndex is the index of OpenAPI v3. Its hashes are of what is served here.
func newIndex(schemas map[string]*schemaDocument) *content {
	index := handler3.OpenAPIV3Discovery{Paths: make(map[string]handler3.OpenAPIV3DiscoveryGroupVersion, len(schemas))}
	for at, d := range schemas {
		index.Paths[at] = handler3.OpenAPIV3DiscoveryGroupVersion{ServerRelativeURL: schemaURL(at, d.choose().hash)}
	}
	body, _ := json.Marshal(index) // strings always have a JSON form
	return newContent(mediaJSON, body)
}

// schemaURL is a document's URL as kube-openapi makes it.
func schemaURL(at, hash string) string {
	u := url.URL{Path: path.Join(openAPIV3, at), RawQuery: url.Values{"hash": {hash}}.Encode()}
	return u.String()
}

// serveIndex answers as kube-openapi's own handler does. (kube-aggregator's, which kube-apiservers have, leaves out the
// ETag and says text/plain.)
func (o *openAPI) serveIndex(w http.ResponseWriter, req *http.Request) {
	w.Header().Set("Cache-Control", cachePrivate)
	o.index().serve(w, req)
}

// schemaHandler serves a document of OpenAPI v3 as kube-openapi's handler3 does, which itself would have each document
// parsed and written anew, with another hash than the server's.
type schemaHandler struct {
	path    string
	content *content
}

func (h schemaHandler) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	w.Header().Set("Vary", "Accept")
	w.Header().Set("Cache-Control", cachePrivate)
	media := acceptable(req, mediaProtobufV3)
	if media == "" {
		refuse(w, negotiation.NewNotAcceptableError([]string{mediaJSON, mediaProtobufV3}))
		return
	}
	hash := req.URL.Query().Get("hash")
	if hash != "" && hash != h.content.hash {
		http.Redirect(w, req, schemaURL(h.path, h.content.hash), http.StatusMovedPermanently)
		return
	}
	c := h.content
	if media = c.offered(w, req, media); media == "" {
		return
	}
	if media != mediaJSON {
		json := c.body
		done := protobufs.get(c.hash, func() (*content, error) { return protobufV3(json) })
		if c = done.wait(req.Context(), patience); c == nil {
			unavailable(w, done)
			return
		}
	}
	if hash != "" {
		// What has this hash in its URL never changes.
		w.Header().Set("Cache-Control", "public, immutable")
		w.Header().Set("Expires", time.Now().AddDate(1, 0, 0).UTC().Format(http.TimeFormat))
	}
	c.serve(w, req)
}

// acceptable is the first of the media types in an Accept header that there is; empty if there is none.
func acceptable(req *http.Request, protobuf string) string {
	accept := strings.Join(req.Header.Values("Accept"), ",")
	if accept == "" {
		return mediaJSON
	}
	deprecated := strings.Replace(protobuf, ".v1.0+", "@v1.0+", 1)
	for _, clause := range goautoneg.ParseAccept(accept) {
		for _, media := range []string{mediaJSON, protobuf, deprecated} {
			kind, subtype, _ := strings.Cut(media, "/")
			if (clause.Type != kind && clause.Type != "*") || (clause.SubType != subtype && clause.SubType != "*") {
				continue
			}
			if media == deprecated {
				return protobuf
			}
			return media
		}
	}
	return ""
}

// unavailable is the answer where a document can't be had, or not yet.
func unavailable(w http.ResponseWriter, t *work) {
	w.Header().Set("Cache-Control", cachePrivate)
	if t.failed() {
		refuse(w, apierrors.NewServiceUnavailable("the OpenAPI document of all servers could not be encoded"))
		return
	}
	w.Header().Set("Retry-After", "1")
	refuse(w, apierrors.NewServiceUnavailable("the OpenAPI document of all servers is being put together"))
}

func protobufV2(json []byte) (*content, error) {
	document, err := openapi_v2.ParseDocument(json)
	if err != nil {
		return nil, err
	}
	return encodeProto(mediaProtobufV2, document)
}

func protobufV3(json []byte) (*content, error) {
	document, err := openapi_v3.ParseDocument(json)
	if err != nil {
		return nil, err
	}
	return encodeProto(mediaProtobufV3, document)
}

func encodeProto(mediaType string, m proto.Message) (*content, error) {
	body, err := proto.MarshalOptions{Deterministic: true}.Marshal(m)
	if err != nil {
		return nil, err
	}
	return newContent(mediaType, body), nil
}
