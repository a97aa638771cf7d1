package documents

import (
	"net/http"

	"k8s.io/apiserver/pkg/endpoints/handlers/negotiation"
)

// Limits of a document that is converted to protobuf, where a value in an extension costs a kilobyte. Real documents have
// a value in some 50 bytes: that of a whole kube-apiserver has 80,000.
const (
	maxConvertedBytes  = 64 << 20
	maxConvertedValues = 1_000_000
)

// convertible counts the values of a JSON document, names of fields apart, without reading them.
func convertible(json []byte) bool {
	if len(json) > maxConvertedBytes {
		return false
	}
	values, quoted := 0, false
	for i := 0; i < len(json); i++ {
		switch c := json[i]; {
		case quoted && c == '\\':
			i++
		case c == '"':
			quoted = !quoted
		case !quoted && (c == ',' || c == '[' || c == '{'):
			values++
		}
	}
	return values <= maxConvertedValues
}

// offered is the media type in which a request for protobuf is answered: JSON, or a refusal and none, where the JSON that
// this is would cost too much to convert.
func (c *content) offered(w http.ResponseWriter, req *http.Request, media string) string {
	if media == mediaJSON || c.convertible() {
		return media
	}
	if media = acceptable(req, ""); media == "" {
		refuse(w, negotiation.NewNotAcceptableError([]string{mediaJSON}))
	}
	return media
}
