package documents

import (
	"context"
	"net/http"
	"strings"

	apidiscoveryv2 "k8s.io/api/apidiscovery/v2"
	apidiscoveryv2beta1 "k8s.io/api/apidiscovery/v2beta1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/runtime/serializer/cbor"
	"k8s.io/apiserver/pkg/endpoints/handlers/negotiation"
)

// codecs are those of a kube-apiserver by default: JSON, YAML and protobuf. Objects that name their own kind need no scheme.
var codecs = serializer.NewCodecFactory(runtime.NewScheme())

// withCBOR are those of a kube-apiserver with the feature gate CBORServingAndStorage.
var withCBOR = serializer.NewCodecFactory(runtime.NewScheme(), serializer.WithSerializer(cbor.NewSerializerInfo))

type cborKey struct{}

// OfferCBOR lets a request have a document in CBOR, if it asks for that.
func OfferCBOR(req *http.Request) *http.Request {
	return req.WithContext(context.WithValue(req.Context(), cborKey{}, true))
}

func offered(req *http.Request) serializer.CodecFactory {
	if req.Context().Value(cborKey{}) != nil {
		return withCBOR
	}
	return codecs
}

// aggregatedOnly lets a clause of an Accept header ask for aggregated discovery, and for nothing else. v2beta1 is here
// for clients that know nothing newer; kube-apiservers have stopped offering it.
type aggregatedOnly struct{}

func (aggregatedOnly) AllowsMediaTypeTransform(_, _ string, gvk *schema.GroupVersionKind) bool {
	return gvk != nil && gvk.Kind == "APIGroupDiscoveryList" &&
		(gvk.GroupVersion() == apidiscoveryv2.SchemeGroupVersion || gvk.GroupVersion() == apidiscoveryv2beta1.SchemeGroupVersion)
}
func (aggregatedOnly) AllowsServerVersion(string) bool  { return false }
func (aggregatedOnly) AllowsStreamSchema(s string) bool { return s == "watch" }

// asksAggregated returns the clause of an Accept header that a kube-apiserver answers with an aggregated document. Like
// there, any such clause comes before all that ask for a legacy one.
func asksAggregated(accept string, codecs serializer.CodecFactory) (negotiation.MediaTypeOptions, bool) {
	options, ok := negotiation.NegotiateMediaTypeOptions(accept, codecs.SupportedMediaTypes(), aggregatedOnly{})
	return options, ok && options.Convert != nil
}

// Local says that an Accept header asks for what the server itself serves (profile=nopeer), be it in CBOR: no document of
// a Set is an answer to it.
func Local(accept string) bool {
	options, ok := asksAggregated(accept, withCBOR)
	return ok && options.Profile == "nopeer"
}

// acceptsGzip reads Accept-Encoding as a kube-apiserver does, for which gzip with a q is none.
func acceptsGzip(req *http.Request) bool {
	for token := range strings.SplitSeq(req.Header.Get("Accept-Encoding"), ",") {
		if strings.TrimSpace(token) == "gzip" {
			return true
		}
	}
	return false
}
