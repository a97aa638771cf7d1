package envoy_test

import (
	"fmt"
	"testing"

	"xds-server/envoy/luatest"
)

// Name constraints of the authority that has signed a certificate itself are the script's to judge: BoringSSL is not asked.
func TestNamesUnderConstraintsAreJudgedAsByGo(t *testing.T) {
	const dns, mail, uri, ip = 2, 1, 6, 7
	type name struct {
		tag   int
		value string
	}
	generals := func(list []name) (out []luatest.General) {
		for _, n := range list {
			out = append(out, luatest.General{Tag: n.tag, Value: n.value})
		}
		return out
	}
	names := generals([]name{
		{dns, "a.example.com"}, {dns, "example.com"}, {dns, "EXAMPLE.com"}, {dns, "*.example.com"}, {dns, "badexample.com"}, {dns, "trail."}, {dns, ""},
		{mail, "a@example.com"}, {mail, "A@example.com"}, {mail, "a@EXAMPLE.com"}, {mail, "a@b.example.com"}, {mail, "a.b+c/d'e@other.net"}, {mail, "broken"},
		{mail, ".a@example.com"}, {mail, "a..b@example.com"}, {mail, "a@"}, {mail, "a@b@example.com"}, {mail, "@example.com"}, {mail, "a b@example.com"},
		{mail, "a@*.example.com"},
		{uri, "spiffe://example.com/ns/a"}, {uri, "spiffe://b.EXAMPLE.com"}, {uri, "https://B.example.com:80/p%41?q"}, {uri, "https://example.com:/"}, {uri, "https://other.net/"},
		{uri, "urn:example.com"}, {uri, "http:///path"}, {uri, "http://10.0.0.1/"}, {uri, "http://10.0.0.1:80/"}, {uri, "http://10.0.0.01/"}, {uri, "http://10.0.0.256/"},
		{uri, "http://10.0.0/"}, {uri, "file:/a/b"}, {uri, "http://:80/"},
		{ip, "\x0a\x00\x00\x01"}, {ip, "\x0b\x00\x00\x01"},
	})
	lists := [][]name{
		{{dns, "example.com"}}, {{dns, ".example.com"}}, {{dns, ""}}, {{mail, "example.com"}}, {{mail, ".example.com"}}, {{mail, "a@example.com"}},
		{{mail, "a@EXAMPLE.com"}, {mail, "other.net"}}, {{mail, ""}}, {{uri, "example.com"}}, {{uri, ".example.com"}}, {{uri, ""}}, {{uri, "10.net"}},
		{{ip, "\x0a\x00\x00\x00\xff\x00\x00\x00"}},
	}
	c := luatest.NewCluster(t)
	b := &luatest.Bundle{Cluster: c}
	var roots [][]byte
	for n, list := range lists {
		for kind, x := range []luatest.Extension{luatest.Constraints(true, generals(list), nil), luatest.Constraints(true, nil, generals(list))} {
			name := luatest.Simple(luatest.CN, fmt.Sprintf("constraints %d %d", n, kind)).DER()
			root := c.Authority(name, name, c.CAKey)
			root.Extensions = append(root.Extensions, x)
			cert := root.Sign(c.CAKey)
			roots = append(roots, cert)
			b.Roots = append(b.Roots, luatest.Root{Cert: cert, Name: name, Key: c.CAKey})
		}
	}
	c.WriteCA(t, roots...)
	e := startFront(t, c)
	users, others := 0, 0
	for _, root := range b.Roots {
		for _, name := range names {
			leaf := c.Leaf()
			leaf.Issuer = root.Name
			leaf.Extensions = append(leaf.Extensions, luatest.Names(name))
			want, _, err := difference(e, b, [][]byte{leaf.Sign(c.CAKey)}, c.LeafKey)
			if err != nil {
				t.Error(err)
			}
			if want.Kind == user {
				users++
			} else {
				others++
			}
		}
	}
	if users < 300 || others < 300 {
		t.Errorf("%d are users and %d are not: this shows little", users, others)
	}
}
