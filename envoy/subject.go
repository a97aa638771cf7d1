package envoy

import (
	"fmt"
	"regexp"
	"strings"
)

// A subject's attributes as Envoy writes them, which is RFC 2253: the last one first, separated by commas, or plus signs
// within a set. Whatever could be a separator in a value is escaped.
const (
	otherType      = `(?:[^C=,+][^=,+]*|C|C[^N=,+][^=,+]*|CN[^=,+]+)` // any but CN
	attributeValue = `(?:\\.|[^\\,+])*`
)

// subjectRegex matches the subjects whose name is one of these. As to an apiserver, the name is the last CN, and nothing
// but a CN: no alternative name, no part of another value.
func subjectRegex(names []string) string {
	quoted := make([]string, len(names))
	for i, n := range names {
		quoted[i] = regexp.QuoteMeta(escapeRFC2253(n))
	}
	return `(?s)^(?:` + otherType + `=` + attributeValue + `[,+])*CN=(?:` + strings.Join(quoted, "|") + `)(?:[,+].*)?$`
}

// escapeRFC2253 writes a value as BoringSSL's XN_FLAG_RFC2253 does.
func escapeRFC2253(v string) string {
	var b strings.Builder
	for i := range len(v) {
		switch c := v[i]; {
		case c < ' ' || c >= 0x7f:
			fmt.Fprintf(&b, `\%02X`, c)
		case strings.IndexByte(`,+"\<>;`, c) >= 0, c == '#' && i == 0, c == ' ' && (i == 0 || i == len(v)-1):
			b.WriteByte('\\')
			b.WriteByte(c)
		default:
			b.WriteByte(c)
		}
	}
	return b.String()
}
