package documents

import (
	"bytes"
	"net/http"

	apidiscoveryv2 "k8s.io/api/apidiscovery/v2"
	apidiscoveryv2beta1 "k8s.io/api/apidiscovery/v2beta1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	apidiscoveryconversion "k8s.io/apiserver/pkg/apis/apidiscovery/v2"
	"k8s.io/apiserver/pkg/endpoints/handlers/negotiation"
)

// cachePrivate is the Cache-Control of whatever a kube-apiserver's handlers set none for.
const cachePrivate = "no-cache, private"

// form is one of the two shapes of a document, aggregated or legacy.
type form struct {
	allowed negotiation.EndpointRestrictions
	// object makes what is encoded, for the type that was asked for if the form comes in several. It names its own kind.
	object func(asked schema.GroupVersionKind) (runtime.Object, error)
	// header is what a kube-apiserver sets with this form.
	header map[string]string
}

// representation is what negotiation chose: with the document, it determines the bytes.
type representation struct {
	mediaType  string
	asked      schema.GroupVersionKind
	serializer runtime.Serializer
}

// negotiate chooses as a kube-apiserver does: by Accept, the query's pretty and, for the pretty form, the User-Agent.
func (f *form) negotiate(req *http.Request) (representation, error) {
	options, info, err := negotiation.NegotiateOutputMediaType(req, offered(req), f.allowed)
	if err != nil {
		return representation{}, err
	}
	chosen := representation{mediaType: info.MediaType, serializer: info.Serializer}
	if asked := options.Convert; asked != nil {
		chosen.asked = *asked
		chosen.mediaType += ";g=" + asked.Group + ";v=" + asked.Version + ";as=" + asked.Kind
	}
	return chosen, nil
}

// encode returns nil if the object can't be had in the representation.
func (f *form) encode(as representation) *content {
	object, err := f.object(as.asked)
	if err != nil {
		return nil
	}
	var body bytes.Buffer
	if err := as.serializer.Encode(object, &body); err != nil {
		return nil
	}
	return newContent(as.mediaType, body.Bytes())
}

// aggregatedForm is /apis or /api for those who ask for aggregated discovery.
func aggregatedForm(groups []apidiscoveryv2.APIGroupDiscovery) *form {
	return &form{
		allowed: aggregatedOnly{},
		object: func(asked schema.GroupVersionKind) (runtime.Object, error) {
			list := &apidiscoveryv2.APIGroupDiscoveryList{Items: groups}
			if asked.Version == apidiscoveryv2.SchemeGroupVersion.Version {
				list.SetGroupVersionKind(asked)
				return list, nil
			}
			old := &apidiscoveryv2beta1.APIGroupDiscoveryList{}
			err := apidiscoveryconversion.Convertv2APIGroupDiscoveryListTov2beta1APIGroupDiscoveryList(list, old, nil)
			old.SetGroupVersionKind(asked)
			return old, err
		},
		header: map[string]string{"Vary": "Accept", "Cache-Control": "public"},
	}
}

func legacyForm(object func() runtime.Object) *form {
	return &form{
		allowed: negotiation.DefaultEndpointRestrictions,
		object:  func(schema.GroupVersionKind) (runtime.Object, error) { return object(), nil },
		header:  map[string]string{"Cache-Control": cachePrivate},
	}
}

// versions is the legacy /api. Like all legacy documents of the core group it has no apiVersion.
func versions(core apidiscoveryv2.APIGroupDiscovery, addresses []metav1.ServerAddressByClientCIDR) *metav1.APIVersions {
	list := &metav1.APIVersions{
		TypeMeta:                   metav1.TypeMeta{Kind: "APIVersions"},
		ServerAddressByClientCIDRs: addresses,
	}
	for _, v := range core.Versions {
		list.Versions = append(list.Versions, v.Version)
	}
	return list
}
