package luatest

import (
	"crypto/x509"
	"encoding/base64"
	"fmt"
	"strings"

	"golang.org/x/crypto/cryptobyte"
	cbasn1 "golang.org/x/crypto/cryptobyte/asn1"
)

// Describe tells of a chain what decides about it.
func Describe(chain [][]byte) string {
	var b strings.Builder
	for n, raw := range chain {
		c, err := x509.ParseCertificate(raw)
		if err != nil {
			fmt.Fprintf(&b, "%d: %v\n   %s\n", n, err, base64.StdEncoding.EncodeToString(raw))
			continue
		}
		fmt.Fprintf(&b, "%d: v%d %q by %q, %T %v, usage %b, %v to %v", n, c.Version, c.Subject, c.Issuer, c.PublicKey, c.SignatureAlgorithm, c.KeyUsage, c.NotBefore, c.NotAfter)
		for _, x := range c.Extensions {
			fmt.Fprintf(&b, ", %v", x.Id)
			if x.Critical {
				b.WriteString("!")
			}
			fmt.Fprintf(&b, "=%x", x.Value)
		}
		if c.PublicKey == nil {
			fmt.Fprintf(&b, ", key %x", c.RawSubjectPublicKeyInfo)
		}
		fmt.Fprintf(&b, ", serial %v, subject %x, times %q\n", c.SerialNumber, c.RawSubject, times(c))
	}
	return b.String()
}

// times are the two times of a certificate, as they are written.
func times(c *x509.Certificate) cryptobyte.String {
	tbs := cryptobyte.String(c.RawTBSCertificate)
	var v cryptobyte.String
	_ = tbs.ReadASN1(&tbs, cbasn1.SEQUENCE) && tbs.SkipOptionalASN1(cbasn1.Tag(0).Constructed().ContextSpecific()) &&
		tbs.SkipASN1(cbasn1.INTEGER) && tbs.SkipASN1(cbasn1.SEQUENCE) && tbs.SkipASN1(cbasn1.SEQUENCE) && tbs.ReadASN1(&v, cbasn1.SEQUENCE)
	return v
}
