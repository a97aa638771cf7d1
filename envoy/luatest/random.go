package luatest

import (
	"bytes"
	"crypto/elliptic"
	"encoding/asn1"
	"encoding/binary"
	"fmt"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	cbasn1 "golang.org/x/crypto/cryptobyte/asn1"
)

// Choices are where a random certificate comes from: the bytes of a fuzzer, or of a seeded generator. At their end
// every choice is the first, which is the ordinary one.
type Choices struct{ data []byte }

// ChooseFrom reads choices from data.
func ChooseFrom(data []byte) *Choices { return &Choices{data} }

// n is one of 0..k-1.
func (c *Choices) n(k int) int {
	if len(c.data) == 0 {
		return 0
	}
	v := int(c.data[0])
	c.data = c.data[1:]
	if k > 256 {
		v = v<<8 | c.n(256)
	}
	return v % k
}

// rarely is true once in k times.
func (c *Choices) rarely(k int) bool { return c.n(k) == k-1 }

func pick[T any](c *Choices, list ...T) T { return list[c.n(len(list))] }

// A Bundle is a set of authorities of every kind, good and bad, in one CA file.
type Bundle struct {
	*Cluster
	Roots []Root
	keys  []*Key // of leaves
	subs  []*Key // of intermediates
}

// A Root is one of them.
type Root struct {
	Cert, Name []byte
	Key        *Key
}

// Certs is the DER of every root.
func (b *Bundle) Certs() [][]byte {
	out := make([][]byte, len(b.Roots))
	for n, r := range b.Roots {
		out[n] = r.Cert
	}
	return out
}

type keyset struct{ rsa1024, rsa2048, rsa1024b, p384, p224, p521, ed25519 *Key }

var otherKeys = sync.OnceValue(func() keyset {
	return keyset{
		rsaKey(1024, "small"), rsaKey(2048, "rsa"), rsaKey(1024, "small intermediate"), curve(elliptic.P384(), "p384"),
		curve(elliptic.P224(), "p224"), curve(elliptic.P521(), "p521"), Ed25519("ed25519"),
	}
})

// The times of random certificates are always the same, so that all of their bytes are.
var (
	longAgo = time.Date(2019, 3, 1, 12, 0, 0, 0, time.UTC)
	begun   = time.Date(2020, 2, 29, 12, 30, 59, 0, time.UTC)
	notYet  = time.Date(2048, 6, 30, 0, 0, 0, 0, time.UTC)
	end     = time.Date(2049, 10, 31, 23, 59, 0, 0, time.UTC)
)

// NewBundle writes the CA file with all of them.
func NewBundle(tb testing.TB) *Bundle {
	tb.Helper()
	b := &Bundle{Cluster: newCluster(tb, begun, end)}
	k := otherKeys()
	b.keys = []*Key{b.LeafKey, k.rsa2048, k.p384, k.p521, k.rsa1024, k.ed25519}
	b.subs = []*Key{b.SubKey, k.rsa2048, k.p384, k.rsa1024b, k.p224, k.ed25519}
	name := func(s string) []byte { return Simple(CN, s).DER() }
	add := func(subject []byte, key *Key, change func(t *Template)) {
		t := b.Authority(subject, subject, key)
		if change != nil {
			change(&t)
		}
		b.Roots = append(b.Roots, Root{t.Sign(key), subject, key})
	}
	more := func(x ...Extension) func(*Template) {
		return func(t *Template) { t.Extensions = append(t.Extensions, x...) }
	}
	b.Roots = []Root{{b.CA, b.CAName, b.CAKey}}
	add(name("kubernetes"), b.SubKey, nil) // the next one, after a rotation
	add(name("rsa"), k.rsa2048, nil)
	add(name("p384"), k.p384, nil)
	add(name("small rsa"), k.rsa1024, nil)
	add(name("p224"), k.p224, nil)
	add(name("ed25519"), k.ed25519, nil)
	add(name("server auth only"), b.CAKey, more(Usages(ServerAuth)))
	add(name("client auth too"), b.CAKey, more(Usages(ServerAuth, ClientAuth)))
	add(name("any usage"), b.CAKey, more(Usages(AnyUsage)))
	add(name("no path"), b.CAKey, func(t *Template) { t.Extensions[1] = Authority(true, 0) })
	add(name("one path"), b.CAKey, func(t *Template) { t.Extensions[1] = Authority(true, 1) })
	add(name("expired"), b.CAKey, func(t *Template) { t.NotBefore, t.NotAfter = longAgo, begun })
	add(name("unknown critical"), b.CAKey, more(Extension{asn1.ObjectIdentifier{1, 2, 3, 4}, true, []byte{5, 0}}))
	add(name("no certsign"), b.CAKey, func(t *Template) { t.Extensions[0] = Bits(0, 2) })
	add(name("no usage"), b.CAKey, func(t *Template) { t.Extensions = t.Extensions[1:] })
	add(name("no basic constraints"), b.CAKey, func(t *Template) { t.Extensions = t.Extensions[:1] })
	add(name("version 1"), b.CAKey, func(t *Template) { t.Version, t.Extensions = -1, nil })
	add(name("sha1"), k.rsa2048, func(t *Template) { t.Alg = sha1WithRSA })
	add(name("dns constraints"), b.CAKey, more(Constraints(true, []General{{2, "example.com"}, {2, ".sub.org"}}, []General{{2, "bad.example.com"}})))
	add(name("ip constraints"), b.CAKey, more(Constraints(true, []General{{7, "\x0a\x00\x00\x00\xff\x00\x00\x00"}}, []General{{7, "\x0a\x01\x00\x00\xff\xff\x00\x00"}})))
	add(name("mail constraints"), b.CAKey, more(Constraints(false, []General{{1, "example.com"}}, nil)))
	add(name("uri constraints"), b.CAKey, more(Constraints(false, []General{{6, ".example.com"}}, nil)))
	add(name("directory constraints"), b.CAKey, more(Constraints(false, []General{{0x24, "\x30\x00"}}, nil)))
	add(name("critical directory constraints"), b.CAKey, more(Constraints(true, []General{{0x24, "\x30\x00"}}, nil)))
	add(Name{{{CN, PrintableString, "Printable Name"}}}.DER(), b.CAKey, nil)
	add(Name{{{CN, T61String, "t61 \xe9"}}}.DER(), b.CAKey, nil)
	b.WriteCA(tb, b.Certs()...)
	return b
}

// Chain is a random chain with its leaf's key.
func (b *Bundle) Chain(c *Choices) ([][]byte, *Key) {
	issuer := b.Roots[0]
	if c.rarely(3) {
		issuer = b.Roots[c.n(len(b.Roots))]
	}
	var above [][]byte
	for depth := c.n(6) - 3; depth > 0; depth-- {
		key := b.subs[0]
		if c.rarely(4) {
			key = pick(c, b.subs...)
		}
		t := b.Authority(issuer.Name, Simple(CN, fmt.Sprintf("intermediate %d", depth)).DER(), key)
		b.vary(c, &t, true)
		if !c.rarely(6) {
			t.Extensions = append(t.Extensions, issuedBy(issuer.Key))
		}
		cert := t.Sign(issuer.Key)
		above = append([][]byte{cert}, above...)
		issuer = Root{cert, t.Subject, key}
	}
	leaf := b.Leaf()
	leaf.Issuer = issuer.Name
	if c.rarely(4) {
		leaf.Key = pick(c, b.keys...)
	}
	leaf.Subject = subject(c)
	b.vary(c, &leaf, false)
	if !c.rarely(6) {
		leaf.Extensions = append(leaf.Extensions, issuedBy(issuer.Key))
	}
	chain := append([][]byte{leaf.Sign(issuer.Key)}, above...)
	switch c.n(24) {
	case 23:
		chain = append(chain, b.Roots[c.n(len(b.Roots))].Cert)
	case 22:
		chain = append(chain, chain[c.n(len(chain))])
	case 21:
		if len(chain) > 2 {
			chain[1], chain[2] = chain[2], chain[1]
		}
	case 20:
		n := c.n(len(chain))
		chain[n] = spoil(c, chain[n])
	case 19:
		if root := b.Roots[c.n(len(b.Roots))]; root.Key == b.CAKey && len(above) == 0 {
			chain[0] = root.Cert
			return chain, root.Key
		}
	}
	return chain, leaf.Key
}

func spoil(c *Choices, der []byte) []byte {
	out := bytes.Clone(der)
	for range 1 + c.n(2) {
		at := c.n(len(out))
		switch c.n(4) {
		case 0:
			out[at] ^= 1 << c.n(8)
		case 1:
			out[at] = byte(c.n(256))
		case 2:
			out = append(out[:at], out[at+1:]...)
		case 3:
			out = append(out[:at], append([]byte{byte(c.n(256))}, out[at:]...)...)
		}
	}
	return out
}

// mutate changes a byte inside, keeping lengths, so that much of it is still DER.
func mutate(c *Choices, der []byte) []byte {
	out := bytes.Clone(der)
	for range 1 + c.n(2) {
		at := 4 + c.n(len(out)-4)
		if c.n(2) == 0 {
			out[at] ^= 1 << c.n(8)
		} else {
			out[at] = pick(c, byte(0), 1, 5, 12, 18, 19, 20, 22, 23, 24, 28, 30, 0x80, 0xff, 0x30, 0x31, 0xa0, 0x81, 0x7f)
		}
	}
	return out
}

// words are what names are made of; badWords are no UTF-8, or are it by chance only.
var (
	words = []string{
		"alice", "", "system:masters", "a,b", "a+b=c", `q"uo\te/`, "\u00fcn\u00efcod\u00e9 \u65e5\u672c", " blank", "blank ", "nul\x00end", "tab\tbed",
		"new\nline", "\x7f", "#hash", "<>;", "12 34", "a*b&c", "a@b_c", "\u0085", "\u00a0x", "\U0001f600", "system:node:n1", "kubernetes-admin",
	}
	badWords = []string{
		"caf\xe9", "\xed\xa0\x80", "\xf4\x90\x80\x80", "\xc0\xaf", "\xef\xbf\xbe", "\x00a\x00b", "\x04\x10\x30\x42", "\xd8\x00\xdc\x00", "\xff\xfe",
		"\xfd\xd0", "\x00a\x00\x00", "\x00\x00", "odd", "\x00\x00\x00a",
	}
)

func subject(c *Choices) []byte {
	var n Name
	for range 1 + c.n(4) {
		var rdn []Attribute
		for range 1 + max(0, c.n(8)-6) {
			rdn = append(rdn, Attribute{
				Type: pick(c, CN, O, O, CN, UID, OU, asn1.ObjectIdentifier{2, 5, 4, 3, 1}, asn1.ObjectIdentifier{0, 9, 2342, 19200300, 100, 1, 1}),
				Tag:  cbasn1.Tag(UTF8String), Value: "alice",
			})
			a := &rdn[len(rdn)-1]
			if c.n(2) > 0 {
				a.Value = pick(c, words...)
				if c.rarely(10) {
					a.Value = pick(c, badWords...)
				}
			}
			if c.rarely(16) {
				a.Tag = cbasn1.Tag(pick(c, PrintableString, IA5String, T61String, BMPString, NumericString, PrintableString, T61String, BMPString,
					VisibleString, UniversalString, VideotexString, GraphicString, GeneralString, 4, 2, 0x2c))
				if a.Tag == BMPString && !c.rarely(3) {
					a.Value = bmp(a.Value)
				}
			}
		}
		if c.rarely(30) {
			rdn = nil
		}
		n = append(n, rdn)
	}
	if c.rarely(20) {
		n = nil
	}
	return n.DER()
}

func bmp(s string) string {
	var b []byte
	for _, r := range s {
		b = binary.BigEndian.AppendUint16(b, uint16(r))
	}
	return string(b)
}

func timeOf(c *Choices, t time.Time) []byte {
	t = t.UTC()
	tag, s := byte(24), t.Format("20060102150405Z")
	switch c.n(12) {
	case 1, 2, 3:
		tag, s = 23, t.Format("060102150405Z")
	case 4:
		tag, s = 23, t.Format("0601021504Z")
	case 5:
		tag, s = 23, t.Format("060102150405")+pick(c, "+0000", "+0100", "-0030", "+2400", "+0160", "+2500", "", "z")
	case 6:
		s = t.Format("20060102150405") + pick(c, "+0100", ".5Z", ",5Z", "", "+0000")
	case 7:
		s = pick(c, "20261131000000Z", "20260230000000Z", "20240229000000Z", "20260101240000Z", "20260101006000Z", "20260101000060Z", "00000101000000Z", "99991231235959Z")
	case 8:
		tag, s = 23, pick(c, "500101000000Z", "491231235959Z", "680101000000Z", "690101000000Z", "000229000000Z", "260230000000Z")
	}
	return append([]byte{tag, byte(len(s))}, s...)
}

// vary departs from the ordinary in a few ways at once.
func (b *Bundle) vary(c *Choices, t *Template, ca bool) {
	for range max(0, c.n(8)-5) {
		b.once(c, t, ca)
	}
}

func (b *Bundle) once(c *Choices, t *Template, ca bool) {
	set := func(x Extension) {
		for n := range t.Extensions {
			if t.Extensions[n].OID.Equal(x.OID) {
				t.Extensions[n] = x
				return
			}
		}
		t.Extensions = append(t.Extensions, x)
	}
	switch c.n(18) {
	case 0:
		set(Usages(pick(c, nil, []asn1.ObjectIdentifier{ServerAuth}, []asn1.ObjectIdentifier{AnyUsage}, []asn1.ObjectIdentifier{ServerAuth, ClientAuth},
			[]asn1.ObjectIdentifier{{1, 2, 3}}, []asn1.ObjectIdentifier{{1, 2, 3}, AnyUsage})...))
	case 1:
		set(Bits(pick(c, nil, []int{0}, []int{2}, []int{5}, []int{4}, []int{8}, []int{5, 6}, []int{0, 2, 5}, []int{1})...))
	case 2:
		set(Authority(c.n(2) == 0, c.n(4)-1))
	case 3:
		t.Validity = append(timeOf(c, t.NotBefore), timeOf(c, t.NotAfter)...)
	case 4:
		if c.n(2) == 0 {
			t.NotBefore, t.NotAfter = longAgo, begun
		} else {
			t.NotBefore = notYet
		}
	case 5:
		var list []General
		for range c.n(4) {
			list = append(list, pick(c, General{2, "a.example.com"}, General{2, "bad.example.com"}, General{2, "*.example.com"}, General{2, "x.sub.org"},
				General{2, "EXAMPLE.com"}, General{2, "other.net"}, General{2, ".lead"}, General{2, "trail."}, General{2, "sp ace"}, General{2, "\xff"}, General{2, ""},
				General{7, string(net.IP{10, 0, 0, 1})}, General{7, string(net.IP{10, 1, 0, 1})}, General{7, "\x01\x02\x03"}, General{7, string(net.IPv6loopback)},
				General{7, string(net.IP{10, 0, 0, 1}.To16())}, General{1, "a@example.com"}, General{1, "broken"}, General{6, "spiffe://cluster/ns/a"}, General{6, "urn:x"},
				General{6, "http://a..b/"}, General{6, ":bad"}, General{6, "https://host:80/p%41"}, General{6, "https://host/%zz"}, General{8, "\x2a\x03"}, General{0x24, "\x30\x00"}))
		}
		x := Names(list...)
		x.Critical = c.n(3) == 2
		set(x)
	case 6:
		lists := [][]General{nil, {}, {{2, "example.com"}}, {{2, ".example.com"}}, {{2, ""}}, {{7, "\x0a\x00\x00\x00\xff\x00\x00\x00"}}, {{7, "\x0a\x00\x00\x01\xff\x00\x00\x00"}},
			{{7, "\x0a\x00\x00\x00\xff\x00\xff\x00"}}, {{7, "\x0a"}}, {{1, "example.com"}}, {{1, "a@b"}}, {{6, "host"}}, {{6, "1.2.3.4"}}, {{2, "a..b"}}, {{2, "com"}, {2, "example.com"}}, {{0x24, "\x30\x00"}}, {{7, strings.Repeat("\x00", 32)}}}
		set(Constraints(c.n(2) == 0, pick(c, lists...), pick(c, lists...)))
	case 7:
		t.Extensions = append(t.Extensions, Extension{pick(c, asn1.ObjectIdentifier{1, 2, 3, 4}, asn1.ObjectIdentifier{2, 5, 29, 99}, asn1.ObjectIdentifier{2, 5, 29, 18}, asn1.ObjectIdentifier{2, 16, 840, 1, 113730, 1, 1}), c.n(2) == 0, []byte{5, 0}})
	case 8:
		t.Extensions = append(t.Extensions, pick(c,
			Extension{asn1.ObjectIdentifier{2, 5, 29, 35}, c.n(4) == 3, pick(c, []byte("\x30\x03\x80\x01\x01"), []byte("\x30\x00"), []byte("\x04\x00"))},
			Extension{asn1.ObjectIdentifier{2, 5, 29, 14}, c.n(4) == 3, pick(c, []byte("\x04\x01\x01"), []byte("\x30\x00"), []byte("\x04\x00"))},
			Extension{asn1.ObjectIdentifier{2, 5, 29, 32}, c.n(4) == 3, pick(c, []byte("\x30\x06\x30\x04\x06\x02\x2a\x03"), []byte("\x30\x0c\x30\x04\x06\x02\x2a\x03\x30\x04\x06\x02\x2a\x03"), []byte("\x30\x00"))},
			Extension{asn1.ObjectIdentifier{2, 5, 29, 36}, c.n(4) > 0, pick(c, []byte("\x30\x03\x80\x01\x00"), []byte("\x30\x03\x80\x01\x01"), []byte("\x30\x03\x81\x01\x00"), []byte("\x30\x00"), []byte("\x30\x03\x80\x01\xff"))},
			Extension{asn1.ObjectIdentifier{2, 5, 29, 33}, c.n(4) > 0, pick(c, []byte("\x30\x0a\x30\x08\x06\x02\x2a\x03\x06\x02\x2a\x04"), []byte("\x30\x0c\x30\x0a\x06\x04\x55\x1d\x20\x00\x06\x02\x2a\x04"), []byte("\x05\x00"))},
			Extension{asn1.ObjectIdentifier{2, 5, 29, 54}, c.n(4) > 0, pick(c, []byte("\x02\x01\x00"), []byte("\x02\x01\xff"), []byte("\x05\x00"))},
			Extension{asn1.ObjectIdentifier{2, 5, 29, 31}, c.n(4) == 3, pick(c, []byte("\x30\x0b\x30\x09\xa0\x07\xa0\x05\x86\x03a:b"), []byte("\x30\x02\x30\x00"), []byte("\x30\x06\x30\x04\xa0\x02\xa1\x00"), []byte("\x05\x00"))},
			Extension{asn1.ObjectIdentifier{1, 3, 6, 1, 5, 5, 7, 1, 1}, c.n(4) == 3, pick(c, []byte("\x30\x11\x30\x0f\x06\x08\x2b\x06\x01\x05\x05\x07\x30\x01\x86\x03a:b"), []byte("\x30\x00"), []byte("\x05\x00"))},
		))
	case 9:
		if len(t.Extensions) > 0 {
			t.Extensions = append(t.Extensions, t.Extensions[c.n(len(t.Extensions))])
		}
	case 10:
		if len(t.Extensions) > 0 {
			x := &t.Extensions[c.n(len(t.Extensions))]
			x.Value = spoil(c, append(bytes.Clone(x.Value), 0))
		}
	case 11:
		t.Version = pick(c, -1, 0, 1, 3, 255)
		if c.n(2) == 0 {
			t.Extensions = nil
		}
	case 12:
		t.Serial = pick(c, []byte{0}, []byte{0xff}, []byte{0, 1}, []byte{}, bytes.Repeat([]byte{0x7f}, 21))
	case 13:
		t.BadSignature = true
	case 14:
		t.OuterAlg = pick(c, ecdsaWithSHA384, sha256WithRSA)
	case 15:
		t.Alg = pick(c, ecdsaWithSHA1, ecdsaWithSHA384, ecdsaWithSHA512, sha1WithRSA, sha384WithRSA)
	case 16:
		t.Mutate = func(tbs []byte) []byte { return mutate(c, tbs) }
	case 17:
		n := c.n(len(t.Extensions) + 1)
		t.Extensions = t.Extensions[:n]
		if !ca && c.n(4) == 3 {
			t.Issuer = pick(c, Simple(CN, "KUBERNETES").DER(), Simple(CN, " kubernetes ").DER(), Name{{{CN, PrintableString, "kubernetes"}}}.DER())
		}
	}
}
