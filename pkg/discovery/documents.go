package discovery

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Documents is what one kube-apiserver says in its other discovery documents, beyond its View. It is a value: nobody
// changes it once it was made. It may be of a moment before or after the view's.
type Documents struct {
	// Addresses is the serverAddressByClientCIDRs of the legacy /api.
	Addresses []metav1.ServerAddressByClientCIDR
	// Listed are the groups and versions of the legacy /apis, sorted. They come from APIService objects, which all
	// servers share: some may be served by another server, or by none.
	Listed []schema.GroupVersion
	// StorageVersionHashes are those of the legacy /api/v1 and /apis/<g>/<v>, by resource; resources without are left out.
	StorageVersionHashes map[schema.GroupVersion]map[string]string
	// OpenAPIV3 holds the entries of /openapi/v3 by their path in it, such as "api/v1" or "apis/apps/v1".
	OpenAPIV3 map[string]Schema
	// OpenAPIV2 is /openapi/v2 as JSON; nil while it was not read. Servers whose documents are equal share one.
	OpenAPIV2 *OpenAPIV2
}

// Schema is one document of OpenAPI v3.
type Schema struct {
	// Hash is the hash in its URL: the same for equal documents.
	Hash string
	// JSON is the document. It is read only where another server has none of this path, or one of another hash; nil
	// otherwise, and while it was not read yet.
	JSON []byte
}

// OpenAPIV2 is a server's /openapi/v2.
type OpenAPIV2 struct {
	// Hash is the same for equal documents.
	Hash string
	JSON []byte
}
