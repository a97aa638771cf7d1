package luatest

import (
	"crypto"
	"crypto/ed25519"
	_ "crypto/sha1" // for certificates that must be refused
	"crypto/sha256"
	_ "crypto/sha512"
	"encoding/asn1"
	"fmt"
	"time"

	"golang.org/x/crypto/cryptobyte"
	cbasn1 "golang.org/x/crypto/cryptobyte/asn1"
)

// ASN.1 string types that a name's value may have.
const (
	UTF8String      = 12
	NumericString   = 18
	PrintableString = 19
	T61String       = 20
	VideotexString  = 21
	IA5String       = 22
	GraphicString   = 25
	VisibleString   = 26
	GeneralString   = 27
	UniversalString = 28
	BMPString       = 30
)

// OIDs of a name's attributes and of extensions.
var (
	CN                 = asn1.ObjectIdentifier{2, 5, 4, 3}
	O                  = asn1.ObjectIdentifier{2, 5, 4, 10}
	OU                 = asn1.ObjectIdentifier{2, 5, 4, 11}
	UID                = asn1.ObjectIdentifier{1, 3, 6, 1, 4, 1, 57683, 2}
	KeyUsage           = asn1.ObjectIdentifier{2, 5, 29, 15}
	BasicConstraints   = asn1.ObjectIdentifier{2, 5, 29, 19}
	SubjectAltName     = asn1.ObjectIdentifier{2, 5, 29, 17}
	NameConstraints    = asn1.ObjectIdentifier{2, 5, 29, 30}
	ExtKeyUsage        = asn1.ObjectIdentifier{2, 5, 29, 37}
	ClientAuth         = asn1.ObjectIdentifier{1, 3, 6, 1, 5, 5, 7, 3, 2}
	ServerAuth         = asn1.ObjectIdentifier{1, 3, 6, 1, 5, 5, 7, 3, 1}
	AnyUsage           = asn1.ObjectIdentifier{2, 5, 29, 37, 0}
	authorityKeyID     = asn1.ObjectIdentifier{2, 5, 29, 35}
	distributionPoints = asn1.ObjectIdentifier{2, 5, 29, 31}
	sha1WithRSA        = asn1.ObjectIdentifier{1, 2, 840, 113549, 1, 1, 5}
	sha256WithRSA      = asn1.ObjectIdentifier{1, 2, 840, 113549, 1, 1, 11}
	ecdsaWithSHA1      = asn1.ObjectIdentifier{1, 2, 840, 10045, 4, 1}
	ecdsaWithSHA256    = asn1.ObjectIdentifier{1, 2, 840, 10045, 4, 3, 2}
	ecdsaWithSHA384    = asn1.ObjectIdentifier{1, 2, 840, 10045, 4, 3, 3}
	ecdsaWithSHA512    = asn1.ObjectIdentifier{1, 2, 840, 10045, 4, 3, 4}
	sha384WithRSA      = asn1.ObjectIdentifier{1, 2, 840, 113549, 1, 1, 12}
	ed25519OID         = asn1.ObjectIdentifier{1, 3, 101, 112}
)

// An Attribute is one type and value of a name.
type Attribute struct {
	Type  asn1.ObjectIdentifier
	Tag   cbasn1.Tag
	Value string // the contents as they stand in DER
}

// A Name is a sequence of sets of attributes.
type Name [][]Attribute

// Simple is a name of UTF8Strings: type, value, type, value...
func Simple(pairs ...any) Name {
	var n Name
	for i := 0; i < len(pairs); i += 2 {
		n = append(n, []Attribute{{pairs[i].(asn1.ObjectIdentifier), UTF8String, pairs[i+1].(string)}})
	}
	return n
}

// DER encodes the name.
func (n Name) DER() []byte {
	var b cryptobyte.Builder
	b.AddASN1(cbasn1.SEQUENCE, func(b *cryptobyte.Builder) {
		for _, rdn := range n {
			b.AddASN1(cbasn1.SET, func(b *cryptobyte.Builder) {
				for _, a := range rdn {
					b.AddASN1(cbasn1.SEQUENCE, func(b *cryptobyte.Builder) {
						b.AddASN1ObjectIdentifier(a.Type)
						b.AddASN1(a.Tag, func(b *cryptobyte.Builder) { b.AddBytes([]byte(a.Value)) })
					})
				}
			})
		}
	})
	return b.BytesOrPanic()
}

// An Extension of a certificate.
type Extension struct {
	OID      asn1.ObjectIdentifier
	Critical bool
	Value    []byte
}

// A Template says what a certificate holds; nothing in it is checked.
type Template struct {
	Version             int // as written: 2 is X.509 version 3; below 0 leaves it out
	Serial              []byte
	Issuer, Subject     []byte // DER
	NotBefore, NotAfter time.Time
	Validity            []byte // DER of both times, instead of NotBefore and NotAfter
	Key                 *Key
	Extensions          []Extension
	// Alg is the signature algorithm, by default the signing key's own with SHA-256.
	Alg asn1.ObjectIdentifier
	// OuterAlg, if set, makes the two algorithm identifiers differ.
	OuterAlg asn1.ObjectIdentifier
	// BadSignature spoils it.
	BadSignature bool
	// Mutate changes what is signed, before it is.
	Mutate func(tbs []byte) []byte
}

func hashOf(alg asn1.ObjectIdentifier) crypto.Hash {
	switch alg.String() {
	case sha1WithRSA.String(), ecdsaWithSHA1.String():
		return crypto.SHA1
	case ecdsaWithSHA384.String(), sha384WithRSA.String():
		return crypto.SHA384
	case ecdsaWithSHA512.String():
		return crypto.SHA512
	case ed25519OID.String():
		return 0
	}
	return crypto.SHA256
}

func addAlgorithm(b *cryptobyte.Builder, alg asn1.ObjectIdentifier) {
	b.AddASN1(cbasn1.SEQUENCE, func(b *cryptobyte.Builder) {
		b.AddASN1ObjectIdentifier(alg)
		if alg[len(alg)-2] == 1 && len(alg) == 7 && alg[2] == 840 && alg[3] == 113549 {
			b.AddASN1NULL()
		}
	})
}

// Sign makes the certificate with the issuer's key.
func (t Template) Sign(issuer *Key) []byte {
	alg := t.Alg
	if alg == nil {
		alg = issuer.Alg
	}
	var b cryptobyte.Builder
	b.AddASN1(cbasn1.SEQUENCE, func(b *cryptobyte.Builder) { t.tbs(b, alg) })
	tbs := b.BytesOrPanic()
	if t.Mutate != nil {
		tbs = t.Mutate(tbs)
	}

	h := hashOf(alg)
	if _, ok := issuer.Private.(ed25519.PrivateKey); ok {
		h = 0 // it signs nothing else, whatever the certificate says
	}
	digest := tbs
	if h != 0 {
		w := h.New()
		w.Write(tbs)
		digest = w.Sum(nil)
	}
	sig, err := issuer.Private.Sign(nil, digest, h) // without randomness: RFC 6979
	if err != nil {
		panic(fmt.Sprintf("signing a test certificate: %v", err))
	}
	if t.BadSignature {
		sig[len(sig)-1] ^= 1
	}
	var c cryptobyte.Builder
	c.AddASN1(cbasn1.SEQUENCE, func(b *cryptobyte.Builder) {
		b.AddBytes(tbs)
		if t.OuterAlg != nil {
			alg = t.OuterAlg
		}
		addAlgorithm(b, alg)
		b.AddASN1BitString(sig)
	})
	return c.BytesOrPanic()
}

func (t Template) tbs(b *cryptobyte.Builder, alg asn1.ObjectIdentifier) {
	if t.Version >= 0 {
		b.AddASN1(cbasn1.Tag(0).Constructed().ContextSpecific(), func(b *cryptobyte.Builder) {
			b.AddASN1Int64(int64(t.Version))
		})
	}
	serial := t.Serial
	if serial == nil {
		serial = []byte{1}
	}
	b.AddASN1(cbasn1.INTEGER, func(b *cryptobyte.Builder) { b.AddBytes(serial) })
	addAlgorithm(b, alg)
	b.AddBytes(t.Issuer)
	b.AddASN1(cbasn1.SEQUENCE, func(b *cryptobyte.Builder) {
		if t.Validity != nil {
			b.AddBytes(t.Validity)
			return
		}
		b.AddASN1GeneralizedTime(t.NotBefore.UTC())
		b.AddASN1GeneralizedTime(t.NotAfter.UTC())
	})
	b.AddBytes(t.Subject)
	b.AddBytes(t.Key.SPKI)
	if len(t.Extensions) == 0 {
		return
	}
	b.AddASN1(cbasn1.Tag(3).Constructed().ContextSpecific(), func(b *cryptobyte.Builder) {
		b.AddASN1(cbasn1.SEQUENCE, func(b *cryptobyte.Builder) {
			for _, x := range t.Extensions {
				b.AddASN1(cbasn1.SEQUENCE, func(b *cryptobyte.Builder) {
					b.AddASN1ObjectIdentifier(x.OID)
					if x.Critical {
						b.AddASN1Boolean(true)
					}
					b.AddASN1OctetString(x.Value)
				})
			}
		})
	})
}

func der(f func(b *cryptobyte.Builder)) []byte {
	var b cryptobyte.Builder
	f(&b)
	return b.BytesOrPanic()
}

// Usages is an extended key usage extension.
func Usages(oids ...asn1.ObjectIdentifier) Extension {
	return Extension{OID: ExtKeyUsage, Value: der(func(b *cryptobyte.Builder) {
		b.AddASN1(cbasn1.SEQUENCE, func(b *cryptobyte.Builder) {
			for _, o := range oids {
				b.AddASN1ObjectIdentifier(o)
			}
		})
	})}
}

// Bits is a key usage extension; bit 0 is digitalSignature, 2 keyEncipherment, 5 keyCertSign.
func Bits(bits ...int) Extension {
	var v [2]byte
	for _, n := range bits {
		v[n/8] |= 0x80 >> (n % 8)
	}
	value := []byte{3, 2, 0, v[0]}
	if v[1] != 0 {
		value = []byte{3, 3, 7, v[0], v[1]}
	}
	for p := byte(0); v[1] == 0 && v[0] != 0 && v[0]>>p&1 == 0; p++ {
		value[2] = p + 1
	}
	return Extension{OID: KeyUsage, Critical: true, Value: value}
}

// Authority is the basic constraints of a CA; a path length below 0 is left out.
func Authority(ca bool, pathlen int) Extension {
	return Extension{OID: BasicConstraints, Critical: true, Value: der(func(b *cryptobyte.Builder) {
		b.AddASN1(cbasn1.SEQUENCE, func(b *cryptobyte.Builder) {
			if ca {
				b.AddASN1Boolean(true)
			}
			if pathlen >= 0 {
				b.AddASN1Int64(int64(pathlen))
			}
		})
	})}
}

// General names by their context tag: 1 e-mail, 2 DNS, 6 URI, 7 IP address.
type General struct {
	Tag   int
	Value string
}

// Names is a subject alternative name extension.
func Names(names ...General) Extension {
	return Extension{OID: SubjectAltName, Value: der(func(b *cryptobyte.Builder) {
		b.AddASN1(cbasn1.SEQUENCE, func(b *cryptobyte.Builder) {
			for _, n := range names {
				b.AddASN1(cbasn1.Tag(n.Tag).ContextSpecific(), func(b *cryptobyte.Builder) { b.AddBytes([]byte(n.Value)) })
			}
		})
	})}
}

// Constraints is a name constraints extension.
func Constraints(critical bool, permitted, excluded []General) Extension {
	return Extension{OID: NameConstraints, Critical: critical, Value: der(func(b *cryptobyte.Builder) {
		b.AddASN1(cbasn1.SEQUENCE, func(b *cryptobyte.Builder) {
			for tag, list := range [][]General{permitted, excluded} {
				if list == nil {
					continue
				}
				b.AddASN1(cbasn1.Tag(tag).ContextSpecific().Constructed(), func(b *cryptobyte.Builder) {
					for _, n := range list {
						b.AddASN1(cbasn1.SEQUENCE, func(b *cryptobyte.Builder) {
							b.AddASN1(cbasn1.Tag(n.Tag).ContextSpecific(), func(b *cryptobyte.Builder) { b.AddBytes([]byte(n.Value)) })
						})
					}
				})
			}
		})
	})}
}

func keyID(k *Key) string {
	sum := sha256.Sum256(k.SPKI)
	return string(sum[:20])
}

// Identified is the subject key identifier of a CA.
func Identified(k *Key) Extension {
	return Extension{OID: asn1.ObjectIdentifier{2, 5, 29, 14}, Value: []byte("\x04\x14" + keyID(k))}
}

// issuedBy is the authority key identifier that goes with it.
func issuedBy(k *Key) Extension {
	return Extension{OID: authorityKeyID, Value: []byte("\x30\x16\x80\x14" + keyID(k))}
}
