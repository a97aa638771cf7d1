package luatest

import (
	"bytes"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"golang.org/x/crypto/cryptobyte"
	cbasn1 "golang.org/x/crypto/cryptobyte/asn1"
)

// A Class of certificates that an apiserver accepts, or only gives no user for, and Envoy refuses. Nobody gains anything
// by one. They are all that the tests let differ.
type Class struct {
	Name string
	has  func(chain []*x509.Certificate) bool
}

// each makes a class of chains of which some certificate is so.
func each(f func(c *x509.Certificate) bool) func([]*x509.Certificate) bool {
	return func(chain []*x509.Certificate) bool { return slices.ContainsFunc(chain, f) }
}

func extension(c *x509.Certificate, oid asn1.ObjectIdentifier) []byte {
	for _, x := range c.Extensions {
		if x.Id.Equal(oid) {
			return x.Value
		}
	}
	return nil
}

var (
	oddURIDomain = regexp.MustCompile(`[@:]|[0-9]$`)
	plainMail    = regexp.MustCompile(`^[\w-]+@[\w.-]+$`)
)

var oddTime = regexp.MustCompile(`[+-][0-9]{4}|\\x17\\v`)

// Handshake are the classes whose handshake BoringSSL ends, or that are answered 401 as if it had.
var Handshake = []Class{
	{"a name with a Unicode noncharacter (U+FFFE and the like)", each(func(c *x509.Certificate) bool {
		return slices.ContainsFunc(slices.Concat(c.Subject.Names, c.Issuer.Names), func(a pkix.AttributeTypeAndValue) bool {
			v, _ := a.Value.(string)
			return strings.ContainsFunc(v, func(r rune) bool { return r&0xfffe == 0xfffe || r >= 0xfdd0 && r <= 0xfdef })
		})
	})},
	{"a name with an empty set of attributes", each(func(c *x509.Certificate) bool {
		return bytes.Contains(slices.Concat(c.RawSubject, c.RawIssuer), []byte{0x31, 0})
	})},
	{"something behind an attribute's value in a name, or behind the two times", each(func(c *x509.Certificate) bool {
		return !exactName(c.RawSubject) || !exactName(c.RawIssuer) || !exactTimes(c)
	})},
	{"something behind the signature, the extensions, or the parts of an extension", each(func(c *x509.Certificate) bool { return !exactEnds(c) })},
	{"something behind the parameters of an algorithm", each(func(c *x509.Certificate) bool { return !exactAlgorithms(c) })},
	{"a time without seconds or not in UTC", each(func(c *x509.Certificate) bool { return oddTime.MatchString(fmt.Sprintf("%q", []byte(times(c)))) })},
	{"X.509 version 1 or 2, or no extensions", each(func(c *x509.Certificate) bool { return c.Version < 3 || len(c.Extensions) == 0 })},
	{"a client's key usage without digitalSignature, or not in DER", func(chain []*x509.Certificate) bool {
		usage := extension(chain[0], KeyUsage)
		return usage != nil && (chain[0].KeyUsage&x509.KeyUsageDigitalSignature == 0 || !strictDER(usage))
	}},
	{"a URI that is no plain scheme://host/path or scheme:text", each(func(c *x509.Certificate) bool {
		return slices.ContainsFunc(names(c), func(n General) bool { return n.Tag == 6 && !plainURI(n.Value) })
	})},
	{"a name constraint on URIs that has the look of an address, or on mail that has the look of nothing", each(func(c *x509.Certificate) bool {
		return slices.ContainsFunc(slices.Concat(c.PermittedURIDomains, c.ExcludedURIDomains), oddURIDomain.MatchString) ||
			slices.ContainsFunc(slices.Concat(c.PermittedEmailAddresses, c.ExcludedEmailAddresses), func(m string) bool {
				return strings.Contains(m, "@") && !plainMail.MatchString(m)
			})
	})},
}

// Constrained are classes of chains under name constraints, which are the script's own.
var Constrained = []Class{
	{"a mail address with quotes or backslashes under name constraints", func(chain []*x509.Certificate) bool {
		return each(func(c *x509.Certificate) bool { return extension(c, NameConstraints) != nil })(chain) &&
			each(func(c *x509.Certificate) bool { return strings.ContainsAny(strings.Join(c.EmailAddresses, ""), `"\`) })(chain)
	}},
}

// Longer are classes of chains with an intermediate, or under a root whose signature only BoringSSL can check. It has to
// accept them itself then, and refuses these.
var Longer = []Class{
	{"a time without seconds or not in UTC", each(func(c *x509.Certificate) bool { return oddTime.MatchString(fmt.Sprintf("%q", []byte(times(c)))) })},
	{"an extended key usage without clientAuth, such as anyExtendedKeyUsage alone", each(func(c *x509.Certificate) bool {
		return extension(c, ExtKeyUsage) != nil && !slices.Contains(c.ExtKeyUsage, x509.ExtKeyUsageClientAuth)
	})},
	{"name constraints", each(func(c *x509.Certificate) bool { return extension(c, NameConstraints) != nil })},
	{"key identifiers that do not match, or that are missing under several roots of one name", func(chain []*x509.Certificate) bool {
		for _, c := range chain {
			if len(c.AuthorityKeyId) == 0 && c.Issuer.CommonName == "kubernetes" {
				return true
			}
			for _, p := range chain {
				if bytes.Equal(c.RawIssuer, p.RawSubject) && len(c.AuthorityKeyId) > 0 && !bytes.Equal(c.AuthorityKeyId, p.SubjectKeyId) {
					return true
				}
			}
		}
		return false
	}},
	{"an extension whose value is not exactly DER, or says nothing", each(func(c *x509.Certificate) bool {
		return slices.ContainsFunc(c.Extensions, func(x pkix.Extension) bool {
			return !strictDER(x.Value) || bytes.Equal(x.Value, []byte{0x30, 0}) && !x.Id.Equal(BasicConstraints)
		})
	})},
	{"an authority key identifier that names a certificate by issuer or serial number", each(func(c *x509.Certificate) bool {
		s := cryptobyte.String(extension(c, authorityKeyID))
		var id, first cryptobyte.String
		var tag cbasn1.Tag
		return s.ReadASN1(&id, cbasn1.SEQUENCE) && !id.Empty() && (!id.ReadAnyASN1(&first, &tag) || tag != cbasn1.Tag(0).ContextSpecific() || !id.Empty())
	})},
	{"a critical list of CRL distribution points", each(func(c *x509.Certificate) bool {
		return slices.ContainsFunc(c.Extensions, func(x pkix.Extension) bool { return x.Critical && x.Id.Equal(distributionPoints) })
	})},
	{"a key usage that allows nothing", each(func(c *x509.Certificate) bool { return extension(c, KeyUsage) != nil && c.KeyUsage == 0 })},
	{"a path length where there is no CA", each(func(c *x509.Certificate) bool { return c.BasicConstraintsValid && !c.IsCA && c.MaxPathLen >= 0 })},
	{"policies that have to be explicit, are mapped, or skip a negative number of certificates", each(func(c *x509.Certificate) bool {
		return c.RequireExplicitPolicy != 0 || c.RequireExplicitPolicyZero || len(c.PolicyMappings) > 0 || c.InhibitAnyPolicy < 0
	})},
}

// strictDER tells of one element and nothing behind it.
func strictDER(v []byte) bool {
	s := cryptobyte.String(v)
	var e cryptobyte.String
	var tag cbasn1.Tag
	return s.ReadAnyASN1Element(&e, &tag) && s.Empty()
}

func exactName(raw []byte) bool {
	name := cryptobyte.String(raw)
	var set, attribute cryptobyte.String
	if !name.ReadASN1(&name, cbasn1.SEQUENCE) {
		return false
	}
	for !name.Empty() {
		if !name.ReadASN1(&set, cbasn1.SET) {
			return false
		}
		for !set.Empty() {
			var tag cbasn1.Tag
			var value cryptobyte.String
			if !set.ReadASN1(&attribute, cbasn1.SEQUENCE) || !attribute.SkipASN1(cbasn1.OBJECT_IDENTIFIER) ||
				!attribute.ReadAnyASN1(&value, &tag) || !attribute.Empty() {
				return false
			}
		}
	}
	return true
}

// exactAlgorithms tells of algorithms, of the key and of the signature, that are an OID and at most one parameter.
func exactAlgorithms(c *x509.Certificate) bool {
	key, signed := cryptobyte.String(c.RawSubjectPublicKeyInfo), cryptobyte.String(c.RawTBSCertificate)
	exact := func(s *cryptobyte.String) bool {
		var alg, parameters cryptobyte.String
		var tag cbasn1.Tag
		return s.ReadASN1(&alg, cbasn1.SEQUENCE) && alg.SkipASN1(cbasn1.OBJECT_IDENTIFIER) &&
			(alg.Empty() || alg.ReadAnyASN1(&parameters, &tag) && alg.Empty())
	}
	return key.ReadASN1(&key, cbasn1.SEQUENCE) && exact(&key) && signed.ReadASN1(&signed, cbasn1.SEQUENCE) &&
		signed.SkipOptionalASN1(cbasn1.Tag(0).Constructed().ContextSpecific()) && signed.SkipASN1(cbasn1.INTEGER) && exact(&signed)
}

// exactEnds tells of a certificate in which the signature, the extensions and an extension's value are each the last.
func exactEnds(c *x509.Certificate) bool {
	all, tbs := cryptobyte.String(c.Raw), cryptobyte.String(c.RawTBSCertificate)
	if !all.ReadASN1(&all, cbasn1.SEQUENCE) || !all.SkipASN1(cbasn1.SEQUENCE) || !all.SkipASN1(cbasn1.SEQUENCE) ||
		!all.SkipASN1(cbasn1.BIT_STRING) || !all.Empty() || !tbs.ReadASN1(&tbs, cbasn1.SEQUENCE) {
		return false
	}
	var last, list, x cryptobyte.String
	var tag cbasn1.Tag
	explicit := cbasn1.Tag(3).Constructed().ContextSpecific()
	for tag != explicit && !tbs.Empty() {
		if !tbs.ReadAnyASN1(&last, &tag) {
			return false
		}
	}
	if !tbs.Empty() || tag == explicit && (!last.ReadASN1(&list, cbasn1.SEQUENCE) || !last.Empty()) {
		return false
	}
	for !list.Empty() {
		if !list.ReadASN1(&x, cbasn1.SEQUENCE) || !x.SkipASN1(cbasn1.OBJECT_IDENTIFIER) || !x.SkipOptionalASN1(cbasn1.BOOLEAN) ||
			!x.SkipASN1(cbasn1.OCTET_STRING) || !x.Empty() {
			return false
		}
	}
	return true
}

func exactTimes(c *x509.Certificate) bool {
	v := times(c)
	var a, b cryptobyte.String
	var tag cbasn1.Tag
	return v.ReadAnyASN1(&a, &tag) && v.ReadAnyASN1(&b, &tag) && v.Empty()
}

// proven tells of a certificate whose root the script finds out by itself: it asks one key only, that of the root that the
// certificate names by key identifier or, if it names none, of the first with the issuer's name.
func proven(leaf *x509.Certificate, roots []*x509.Certificate) bool {
	var asked *x509.Certificate
	named := false
	for _, r := range roots {
		if !bytes.Equal(leaf.RawIssuer, r.RawSubject) {
			continue
		}
		id := len(leaf.AuthorityKeyId) > 0 && bytes.Equal(leaf.AuthorityKeyId, r.SubjectKeyId)
		if asked == nil || id && !named {
			asked, named = r, named || id
		}
	}
	return asked != nil && asked.PublicKeyAlgorithm != x509.Ed25519 && leaf.CheckSignatureFrom(asked) == nil && asked.CheckSignatureFrom(asked) == nil
}

// ClassOf is the class that explains the difference, or "".
func (b *Bundle) ClassOf(chain [][]byte, want, got Verdict) string {
	var certs []*x509.Certificate
	for _, raw := range chain {
		c, err := x509.ParseCertificate(raw)
		if err != nil {
			// The one thing that Go refuses and the script cannot see; it gives no user.
			if want.Kind == "refused" && got.Kind == "none" && strings.Contains(want.Why, "point not on curve") {
				return "another certificate than the client's with a point that is not on its curve: no user"
			}
			return ""
		}
		certs = append(certs, c)
	}
	classes := Handshake
	if got.Kind == "none" {
		if want.Kind != "user" && want.Kind != "unsafe" {
			return ""
		}
		for _, r := range b.Roots {
			c, err := x509.ParseCertificate(r.Cert)
			if err != nil {
				return ""
			}
			certs = append(certs, c)
		}
		n := len(chain)
		used := certs[:n:n]
		for _, r := range certs[n:] {
			if slices.ContainsFunc(used, func(c *x509.Certificate) bool { return bytes.Equal(c.RawIssuer, r.RawSubject) }) {
				used = append(used, r)
			}
		}
		classes, certs = Constrained, used
		if !proven(certs[0], certs[n:]) { // only then BoringSSL's opinion counts
			classes = slices.Concat(classes, Longer)
		}
	} else if got.Kind != "refused" {
		return ""
	}
	for _, k := range classes {
		if k.has(certs) {
			return k.Name
		}
	}
	return ""
}
