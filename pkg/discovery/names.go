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
// they are. An entry left out is no API gone: requests for it take the default way.

// validGroup is a DNS subdomain, or empty for the core group.
func validGroup(name string) bool {
	return name == "" || len(validation.IsDNS1123Subdomain(name)) == 0
}

// validVersion is what an APIService may be named by.
func validVersion(name string) bool {
	return len(validation.IsDNS1035Label(name)) == 0
}

// validResource is wider than a CRD's plural name: metrics APIs name resources after metrics, in any case and with
// underscores.
func validResource(name string) bool {
	if len(name) == 0 || len(name) > validation.DNS1123SubdomainMaxLength || !alphanumeric(name[0]) {
		return false
	}
	for i := range len(name) {
		if !alphanumeric(name[i]) && !strings.ContainsRune("-_.:", rune(name[i])) {
			return false
		}
	}
	return true
}

// validSubresource may have several segments: KubeVirt has "sev/fetchcertchain".
func validSubresource(name string) bool {
	for segment := range strings.SplitSeq(name, "/") {
		if !validResource(segment) {
			return false
		}
	}
	return len(name) <= validation.DNS1123SubdomainMaxLength
}

func alphanumeric(c byte) bool {
	return 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9'
}
