package discovery

import (
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"
)

// Reasons for which an entry of a document is left out.
const (
	reasonInvalid   = "invalid"
	reasonDuplicate = "duplicate"
)

// Names become keys of route tables, so only such ones are let in that Kubernetes can have and that stand in a path as
// they are. An entry left out is no API gone: requests for it take the default way, and its View is Partial.

// validGroup is a DNS subdomain, or empty for the core group.
func validGroup(name string) bool {
	return name == "" || len(validation.IsDNS1123Subdomain(name)) == 0
}

// validVersion is what an APIService may be named by.
func validVersion(name string) bool {
	return len(validation.IsDNS1035Label(name)) == 0
}

// maxName is more than the names of metrics have that are made of a path, a host and a query.
const maxName = 1024

// validResource is far wider than a CRD's plural name: metrics APIs name resources as they like, such as
// "datadogmetric@ns:x" or "pubsub.googleapis.com|topic|size". What Envoy's classifier does not name of these takes the
// default way, but each is listed.
func validResource(name string) bool {
	return len(name) > 0 && len(name) <= maxName && name != "." && name != ".." &&
		!strings.ContainsFunc(name, func(r rune) bool { return r <= ' ' || r > '~' || strings.ContainsRune("/%?#\\\"'`", r) })
}

// validSubresource may have several segments: KubeVirt has "sev/fetchcertchain".
func validSubresource(name string) bool {
	for segment := range strings.SplitSeq(name, "/") {
		if !validResource(segment) {
			return false
		}
	}
	return len(name) <= maxName
}

func alphanumeric(c byte) bool {
	return 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9'
}
