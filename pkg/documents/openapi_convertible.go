package documents

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
