package luatest

import (
	"crypto/x509"
	"regexp"
	"strings"

	"golang.org/x/crypto/cryptobyte"
	cbasn1 "golang.org/x/crypto/cryptobyte/asn1"
)

// names are the subject alternative names of a certificate, as they are written.
func names(c *x509.Certificate) (out []General) {
	s := cryptobyte.String(extension(c, SubjectAltName))
	var list, value cryptobyte.String
	if !s.ReadASN1(&list, cbasn1.SEQUENCE) {
		return nil
	}
	for !list.Empty() {
		var tag cbasn1.Tag
		if !list.ReadAnyASN1(&value, &tag) {
			return out
		}
		out = append(out, General{int(tag) &^ 0x80, string(value)})
	}
	return out
}

var (
	uriParts = regexp.MustCompile(`^[A-Za-z][\w+.-]*:([\w.~:/?@!$&'()*+,;=%-]*)(?:#[\w.~:/?#@!$&'()*+,;=%-]*)?$`)
	badEsc   = regexp.MustCompile(`%(?:[^0-9A-Fa-f]|.[^0-9A-Fa-f]|.?$)`)
	uriHost  = regexp.MustCompile(`^//(?:[\w.-]*(?::[0-9]*)?)(?:/.*)?$`)
)

// plainURI tells of a URI that the script reads: Go's own parser takes more.
func plainURI(u string) bool {
	m := uriParts.FindStringSubmatch(u)
	if m == nil {
		return false
	}
	_, fragment, _ := strings.Cut(u, "#")
	path, _, _ := strings.Cut(m[1], "?")
	if badEsc.MatchString(fragment) || strings.HasPrefix(path, "/") && badEsc.MatchString(path) {
		return false
	}
	if !strings.HasPrefix(path, "//") {
		return true
	}
	return uriHost.MatchString(path)
}
