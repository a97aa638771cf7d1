package routing

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/asn1"
	"math/big"
	"strings"
	"time"

	"golang.org/x/crypto/cryptobyte"
	cbasn1 "golang.org/x/crypto/cryptobyte/asn1"

	"xds-server/test/e2e/suite"
	"xds-server/test/lab"
)

// The attributes that make a user of a certificate, and one that does not.
var (
	cn  = asn1.ObjectIdentifier{2, 5, 4, 3}
	o   = asn1.ObjectIdentifier{2, 5, 4, 10}
	ou  = asn1.ObjectIdentifier{2, 5, 4, 11}
	uid = asn1.ObjectIdentifier{1, 3, 6, 1, 4, 1, 57683, 2}
)

// stringTypes are all of ASN.1's, with a value each that is right for the type. Go reads some of them and refuses a
// certificate with any other.
var stringTypes = []struct {
	name  string
	tag   cbasn1.Tag
	value string
}{
	{"UTF8String", 12, "zoë 東京"},
	{"NumericString", 18, "0123 456"},
	{"PrintableString", 19, "Kube user (1)"},
	{"TeletexString", 20, "zo\xeb"},
	{"VideotexString", 21, "videotex"},
	{"IA5String", 22, "a@b.example"},
	{"GraphicString", 25, "graphic"},
	{"VisibleString", 26, "visible"},
	{"GeneralString", 27, "general"},
	{"UniversalString", 28, "\x00\x00\x00a\x00\x00\x00b"},
	{"CHARACTER STRING", 29, "character"},
	{"BMPString", 30, "\x00z\x00o\x00\xeb\x67\x71"},
	{"OCTET STRING", 4, "octets"},
	{"INTEGER", 2, "\x05"},
	// Values that are wrong for their type.
	{"UTF8String that is none", 12, "zo\xeb"},
	{"PrintableString with an @", 19, "a@b"},
	{"PrintableString with * and &", 19, "a*b&c"},
	{"NumericString with letters", 18, "a1"},
	{"IA5String beyond ASCII", 22, "zo\xeb"},
	{"BMPString with a surrogate", 30, "\xd8\x00\xdc\x00"},
	{"BMPString that ends in NUL", 30, "\x00a\x00\x00"},
}

// An attribute of a subject: its type, its string type, and the bytes of its value.
type attribute struct {
	oid   asn1.ObjectIdentifier
	tag   cbasn1.Tag
	value string
}

// text is the usual kind of attribute.
func text(oid asn1.ObjectIdentifier, value string) attribute { return attribute{oid, 12, value} }

// subject is a name whose sets have one attribute each.
func subject(attributes ...attribute) []byte {
	sets := make([][]attribute, len(attributes))
	for i, a := range attributes {
		sets[i] = []attribute{a}
	}
	return sets2subject(sets...)
}

// sets2subject is a name of any sets.
func sets2subject(sets ...[]attribute) []byte {
	var b cryptobyte.Builder
	b.AddASN1(cbasn1.SEQUENCE, func(b *cryptobyte.Builder) {
		for _, set := range sets {
			b.AddASN1(cbasn1.SET, func(b *cryptobyte.Builder) {
				for _, a := range set {
					b.AddASN1(cbasn1.SEQUENCE, func(b *cryptobyte.Builder) {
						b.AddASN1ObjectIdentifier(a.oid)
						b.AddASN1(a.tag, func(b *cryptobyte.Builder) { b.AddBytes([]byte(a.value)) })
					})
				}
			})
		}
	})
	return b.BytesOrPanic()
}

type namedSubject struct {
	name string
	der  []byte
}

// subjects are all kinds of names that a certificate of the cluster's authority may have.
func subjects() []namedSubject {
	user := text(cn, "carol")
	all := []namedSubject{
		{"a user in no group", subject(user)},
		{"several O", subject(text(o, "one"), text(o, "two"), user, text(o, "three"))},
		{"the same O twice, and one that every user has", subject(user, text(o, "one"), text(o, "one"), text(o, "system:authenticated"))},
		{"two hundred O", subject(append([]attribute{user}, repeated(text(o, "group"), 200)...)...)},
		{"system:masters", subject(user, text(o, "system:masters"))},
		{"a node", subject(text(cn, "system:node:worker"), text(o, "system:nodes"))},
		{"a service account's name", subject(text(cn, "system:serviceaccount:default:robot"))},
		{"commas", subject(text(cn, "carol,CN=admin"), text(o, "one, O=system:masters"))},
		{"plus signs", subject(text(cn, "carol+CN=admin"), text(o, "one+O=system:masters"))},
		{"quotes and backslashes", subject(text(cn, `"carol\" \ \\`), text(o, `"one" \"two\`))},
		{"slashes", subject(text(cn, "/CN=carol/O=system:masters"), text(o, "one/two//"))},
		{"equals signs, angles, semicolons, hashes", subject(text(cn, "=carol<a>;#b"), text(o, "#13616263"), text(o, "=;<>"))},
		{"percent signs", subject(text(cn, "carol%2c%41%"), text(o, "%73ystem:masters"))},
		{"colons and header-like text", subject(text(cn, "X-Remote-User: admin"), text(o, "X-Remote-Group: system:masters"))},
		{"blanks inside", subject(text(cn, "carol  of  the  lab"), text(o, "two  words"))},
		{"non-ASCII", subject(text(cn, "каро́ль 東京 🎈"), text(o, "grüße"), text(o, "東京"))},
		{"C1 controls and a no-break space", subject(text(cn, "\u00a0carol\u0085"), text(o, "\u2028one"))},
		{"a long name", subject(text(cn, strings.Repeat("carol ", 500)+"."), text(o, strings.Repeat("x", 4000)))},
		{"no attribute at all", subject()},
		{"no CN", subject(text(o, "one"))},
		{"an empty CN", subject(text(cn, ""), text(o, "system:masters"))},
		{"two CNs", subject(text(cn, "admin"), user, text(o, "one"))},
		{"last of two CNs empty", subject(text(cn, "admin"), text(cn, ""), text(o, "system:masters"))},
		{"first of two CNs empty", subject(text(cn, ""), user)},
		{"an OU", subject(user, text(ou, "system:masters"))},
		{"one set of several attributes", sets2subject([]attribute{text(cn, "carol"), text(o, "one"), text(o, "two"), text(ou, "three")})},
		{"sets of several attributes, two CNs", sets2subject([]attribute{text(cn, "admin"), text(o, "one")}, []attribute{text(o, "two"), text(cn, "carol")})},
		{"a UID", subject(user, text(o, "one"), text(uid, "uid-carol"))},
		{"two UIDs", subject(user, text(uid, "uid-carol"), text(uid, "uid-admin"))},
		{"the same UID twice", subject(user, text(uid, "uid-carol"), text(uid, "uid-carol"))},
		{"an empty UID", subject(user, text(uid, ""))},
		{"a UID that is no string", subject(user, attribute{uid, 2, "\x05"})},
		{"a UID without a CN", subject(text(uid, "uid-carol"))},
	}
	for _, t := range stringTypes {
		all = append(all,
			namedSubject{"CN as " + t.name, subject(attribute{cn, t.tag, t.value}, text(o, "one"))},
			namedSubject{"O as " + t.name, subject(user, attribute{o, t.tag, t.value})})
	}
	return all
}

func repeated(a attribute, n int) []attribute {
	out := make([]attribute, n)
	for i := range out {
		out[i] = a
		out[i].value += "-" + string(rune('a'+i%26)) + string(rune('a'+i/26))
	}
	return out
}

// uncarriedSubjects are users that no header can carry, and what the front says of them.
var uncarriedSubjects = []struct {
	subject []byte
	why     string
}{
	{subject(text(cn, "carol\nX-Remote-Group: system:masters")), "common name holds a control character"},
	{subject(text(cn, "admin\x00carol")), "common name holds a control character"},
	{subject(text(cn, "carol\x7f")), "common name holds a control character"},
	{subject(text(cn, "\tcarol")), "common name holds a control character"},
	{subject(text(cn, " carol")), "common name begins or ends with a blank"},
	{subject(text(cn, "carol ")), "common name begins or ends with a blank"},
	{subject(text(cn, " ")), "common name begins or ends with a blank"},
	{subject(text(cn, "carol"), text(o, "")), "organization of the client certificate is empty"},
	{subject(text(cn, "carol"), text(o, "one"), text(o, "system:masters\r")), "organization of the client certificate holds a control character"},
	{subject(text(cn, "carol"), text(o, " system:masters")), "organization of the client certificate begins or ends with a blank"},
	{subject(text(cn, "carol"), text(uid, "uid\x1b")), "UID holds a control character"},
	{subject(text(cn, "carol"), text(uid, "uid ")), "UID begins or ends with a blank"},
	{subject(attribute{cn, 30, "\x00c\x00\x0a"}), "common name holds a control character"},
}

// clientCertificate is a certificate with this subject, for clients.
func clientCertificate(s *suite.S, ca *lab.Pair, der []byte) *lab.Pair {
	s.Helper()
	return sign(s, ca, x509.Certificate{RawSubject: der, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}, nil)
}

// sign is lab's Issue, for certificates that crypto/x509 would not read back and for other kinds of keys.
func sign(s *suite.S, ca *lab.Pair, t x509.Certificate, key crypto.Signer) *lab.Pair {
	s.Helper()
	if key == nil {
		var err error
		if key, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader); err != nil {
			s.Fatal(err)
		}
	}
	if t.SerialNumber == nil {
		t.SerialNumber = big.NewInt(time.Now().UnixNano())
	}
	if t.NotBefore.IsZero() {
		t.NotBefore = time.Now().Add(-time.Hour)
	}
	if t.NotAfter.IsZero() {
		t.NotAfter = time.Now().Add(time.Hour)
	}
	if t.KeyUsage == 0 {
		t.KeyUsage = x509.KeyUsageDigitalSignature
	}
	der, err := x509.CreateCertificate(rand.Reader, &t, ca.Cert, key.Public(), ca.Key)
	if err != nil {
		s.Fatalf("making a certificate: %v", err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		cert = &x509.Certificate{Raw: der} // the servers are to see for themselves
	}
	return &lab.Pair{Cert: cert, Key: key}
}
