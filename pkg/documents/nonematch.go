package documents

import "strings"

// noneMatch says that a content of this hash, as it is or compressed, is among what the client's If-None-Match names.
// Tags are compared weakly, as RFC 9110 has it. Where a list stops being one, the rest of it names nothing.
func noneMatch(headers []string, hash string) bool {
	rest := strings.Join(headers, ",")
	if strings.Trim(rest, " \t") == "*" {
		return true
	}
	for {
		rest = strings.TrimLeft(rest, " \t,")
		rest = strings.TrimPrefix(rest, "W/")
		if !strings.HasPrefix(rest, `"`) {
			return false
		}
		tag, after, closed := strings.Cut(rest[1:], `"`)
		if !closed {
			return false
		}
		if tag == hash || tag == zippedHash(hash) {
			return true
		}
		rest = strings.TrimLeft(after, " \t")
		if !strings.HasPrefix(rest, ",") {
			return false
		}
	}
}
