package envoy_test

import (
	"crypto/tls"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/crypto/cryptobyte/asn1"

	"xds-server/envoy/lua"
	"xds-server/envoy/luatest"
)

// A subject is a certificate and what it stands for.
type subject struct {
	what string
	// kind is what both the apiserver and Envoy must make of it.
	kind string
	make func(c *luatest.Cluster, leaf *luatest.Template) (above [][]byte, issuer *luatest.Key)
}

// named changes nothing but the subject.
func named(what, kind string, n luatest.Name) subject {
	return subject{what, kind, func(_ *luatest.Cluster, leaf *luatest.Template) ([][]byte, *luatest.Key) {
		leaf.Subject = n.DER()
		return nil, nil
	}}
}

func attribute(kind []int, tag asn1.Tag, value string) []luatest.Attribute {
	return []luatest.Attribute{{Type: kind, Tag: tag, Value: value}}
}

func cn(tag asn1.Tag, value string) luatest.Name {
	return luatest.Name{attribute(luatest.CN, tag, value), attribute(luatest.O, luatest.UTF8String, "group")}
}

// changed is an ordinary certificate of alice's but for one thing.
func changed(what, kind string, f func(c *luatest.Cluster, leaf *luatest.Template)) subject {
	return subject{what, kind, func(c *luatest.Cluster, leaf *luatest.Template) ([][]byte, *luatest.Key) {
		f(c, leaf)
		return nil, nil
	}}
}

func extended(what, kind string, x ...luatest.Extension) subject {
	return changed(what, kind, func(_ *luatest.Cluster, leaf *luatest.Template) { leaf.Extensions = append(leaf.Extensions, x...) })
}

// through is issued by an intermediate with these extensions.
func through(what, kind string, x ...luatest.Extension) subject {
	return subject{what, kind, func(c *luatest.Cluster, leaf *luatest.Template) ([][]byte, *luatest.Key) {
		leaf.Issuer = luatest.Simple(luatest.CN, "intermediate").DER()
		above := c.Authority(c.CAName, leaf.Issuer, c.SubKey)
		above.Extensions = append(above.Extensions, x...)
		return [][]byte{above.Sign(c.CAKey)}, c.SubKey
	}}
}

const (
	user, none, refused, unsafe = "user", "none", "refused", "unsafe"

	utf8str = luatest.UTF8String
)

var critical = luatest.Extension{OID: []int{1, 2, 3, 4}, Critical: true, Value: []byte{5, 0}}

var subjects = []subject{
	named("several O", user, luatest.Simple(luatest.O, "b", luatest.CN, "alice", luatest.O, "a", luatest.O, "b")),
	named("commas", user, luatest.Simple(luatest.CN, "a,b", luatest.O, "x, O=system:masters")),
	named("plus signs", user, luatest.Simple(luatest.CN, "a+b", luatest.O, "x+O=system:masters")),
	named("quotes", user, luatest.Simple(luatest.CN, `a"b`, luatest.O, `"x"`)),
	named("backslashes", user, luatest.Simple(luatest.CN, `a\b`, luatest.O, `\x\`)),
	named("slashes and equals signs", user, luatest.Simple(luatest.CN, "/CN=a/O=b", luatest.O, "x=y/z")),
	named("non-ASCII", user, luatest.Simple(luatest.CN, "ünïcodé 日本 😀", luatest.O, "グループ")),
	named("odd but harmless", user, luatest.Simple(luatest.CN, "#a;<b>*&_@~", luatest.O, "a  b")),
	named("UTF8String", user, cn(utf8str, "é")),
	named("UTF8String that is none", refused, cn(utf8str, "\xe9")),
	named("PrintableString", user, cn(luatest.PrintableString, "Alice (a*b&c)?")),
	named("PrintableString with other characters", refused, cn(luatest.PrintableString, "a@b")),
	named("IA5String", user, cn(luatest.IA5String, "a@b.c")),
	named("IA5String with a high byte", refused, cn(luatest.IA5String, "caf\xe9")),
	named("T61String", user, cn(luatest.T61String, "caf\xe9")),
	named("NumericString", user, cn(luatest.NumericString, "12 34")),
	named("NumericString with letters", refused, cn(luatest.NumericString, "12a")),
	named("BMPString", user, cn(luatest.BMPString, "\x00a\x65\xe5")),
	named("BMPString with a terminator", user, cn(luatest.BMPString, "\x00a\x00\x00")),
	named("BMPString of odd length", refused, cn(luatest.BMPString, "\x00a\x00")),
	named("BMPString with surrogates", refused, cn(luatest.BMPString, "\xd8\x00\xdc\x00")),
	named("UniversalString", refused, cn(luatest.UniversalString, "\x00\x00\x00a")),
	named("VisibleString", refused, cn(luatest.VisibleString, "alice")),
	named("GeneralString", refused, cn(luatest.GeneralString, "alice")),
	named("GraphicString", refused, cn(luatest.GraphicString, "alice")),
	named("VideotexString", refused, cn(luatest.VideotexString, "alice")),
	named("OCTET STRING", refused, cn(4, "alice")),
	named("an unsupported type in another attribute", refused, luatest.Name{attribute(luatest.CN, utf8str, "alice"), attribute(luatest.OU, luatest.VisibleString, "x")}),
	named("no CN", none, luatest.Simple(luatest.O, "system:masters")),
	named("empty CN", none, luatest.Simple(luatest.CN, "", luatest.O, "system:masters")),
	named("last of two CNs", user, luatest.Simple(luatest.CN, "admin", luatest.CN, "alice")),
	named("last of two CNs empty", none, luatest.Simple(luatest.CN, "admin", luatest.O, "system:masters", luatest.CN, "")),
	named("empty subject", none, nil),
	named("multi-valued RDN", user, luatest.Name{slices.Concat(
		attribute(luatest.O, utf8str, "b"), attribute(luatest.CN, utf8str, "bob"), attribute(luatest.O, utf8str, "a"), attribute(luatest.CN, utf8str, "alice"))}),
	named("a UID", user, luatest.Simple(luatest.CN, "alice", luatest.UID, "uid-123")),
	named("a UID as PrintableString", user, luatest.Name{attribute(luatest.CN, utf8str, "alice"), attribute(luatest.UID, luatest.PrintableString, "uid-123")}),
	named("two UIDs", none, luatest.Simple(luatest.CN, "alice", luatest.UID, "a", luatest.UID, "b")),
	named("an empty UID", none, luatest.Simple(luatest.CN, "alice", luatest.UID, "")),
	named("NUL in CN", unsafe, luatest.Simple(luatest.CN, "admin\x00evil")),
	named("line feed in CN", unsafe, luatest.Simple(luatest.CN, "a\r\nX-Remote-Group: system:masters")),
	named("DEL in a group", unsafe, luatest.Simple(luatest.CN, "a", luatest.O, "b\x7f")),
	named("tab in a UID", unsafe, luatest.Simple(luatest.CN, "a", luatest.UID, "b\tc")),
	named("blank before the name", unsafe, luatest.Simple(luatest.CN, " admin")),
	named("blank after a group", unsafe, luatest.Simple(luatest.CN, "a", luatest.O, "b ")),
	named("an empty group", unsafe, luatest.Simple(luatest.CN, "a", luatest.O, "", luatest.O, "b")),

	changed("expired", none, func(_ *luatest.Cluster, l *luatest.Template) { l.NotAfter = time.Now().Add(-time.Minute) }),
	changed("not yet valid", none, func(_ *luatest.Cluster, l *luatest.Template) { l.NotBefore = time.Now().Add(time.Minute) }),
	{"of a foreign CA", none, func(*luatest.Cluster, *luatest.Template) ([][]byte, *luatest.Key) {
		return nil, luatest.P256("a foreign CA")
	}},
	changed("of a foreign CA with another name", none, func(_ *luatest.Cluster, l *luatest.Template) { l.Issuer = luatest.Simple(luatest.CN, "evil").DER() }),
	changed("the CA's name in other letters", none, func(_ *luatest.Cluster, l *luatest.Template) {
		l.Issuer = luatest.Simple(luatest.CN, "KUBERNETES").DER()
	}),
	changed("a spoiled signature", none, func(_ *luatest.Cluster, l *luatest.Template) { l.BadSignature = true }),
	changed("without clientAuth", none, func(_ *luatest.Cluster, l *luatest.Template) { l.Extensions[1] = luatest.Usages(luatest.ServerAuth) }),
	changed("any usage", user, func(_ *luatest.Cluster, l *luatest.Template) { l.Extensions[1] = luatest.Usages(luatest.AnyUsage) }),
	changed("no usages at all", user, func(_ *luatest.Cluster, l *luatest.Template) {
		l.Extensions = []luatest.Extension{luatest.Names(luatest.General{Tag: 2, Value: "a.b"})}
	}),
	changed("SHA-1", none, func(_ *luatest.Cluster, l *luatest.Template) { l.Alg = []int{1, 2, 840, 10045, 4, 1} }),
	changed("SHA-384", user, func(_ *luatest.Cluster, l *luatest.Template) { l.Alg = []int{1, 2, 840, 10045, 4, 3, 3} }),
	changed("two algorithms", refused, func(_ *luatest.Cluster, l *luatest.Template) { l.OuterAlg = []int{1, 2, 840, 10045, 4, 3, 3} }),
	extended("an unknown critical extension", none, critical),
	extended("an unknown extension", user, luatest.Extension{OID: critical.OID, Value: critical.Value}),
	extended("a duplicate extension", refused, luatest.Usages(luatest.ClientAuth)),
	extended("a malformed IP address", refused, luatest.Names(luatest.General{Tag: 7, Value: "abc"})),
	extended("an unusual name", user, luatest.Names(luatest.General{Tag: 2, Value: "trailing."}, luatest.General{Tag: 6, Value: "spiffe://cluster/ns/a"})),
	extended("name constraints on itself", user, luatest.Constraints(true, nil, []luatest.General{{Tag: 2, Value: "example.com"}})),
	extended("constraints on directory names, critical", none, luatest.Constraints(true, []luatest.General{{Tag: 0x24, Value: "\x30\x00"}}, nil)),
	changed("a negative serial number", refused, func(_ *luatest.Cluster, l *luatest.Template) { l.Serial = []byte{0x80} }),
	{"an unsupported key", refused, func(_ *luatest.Cluster, l *luatest.Template) ([][]byte, *luatest.Key) {
		l.Key = luatest.Ed25519("unsupported")
		l.Key.SPKI = append([]byte(nil), l.Key.SPKI...)
		l.Key.SPKI[8]++ // an algorithm that Go does not know
		return nil, nil
	}},

	through("through an intermediate", user),
	{"through an intermediate, and the root comes along", user, func(c *luatest.Cluster, leaf *luatest.Template) ([][]byte, *luatest.Key) {
		above, key := through("", "").make(c, leaf)
		return append(above, c.CA), key
	}},
	through("through one for servers only", none, luatest.Usages(luatest.ServerAuth)),
	through("through one with an unknown critical extension", none, critical),
	{"through one that is no CA", none, func(c *luatest.Cluster, leaf *luatest.Template) ([][]byte, *luatest.Key) {
		leaf.Issuer = luatest.Simple(luatest.CN, "intermediate").DER()
		above := c.Leaf()
		above.Subject, above.Key = leaf.Issuer, c.SubKey
		return [][]byte{above.Sign(c.CAKey)}, c.SubKey
	}},
	{"through one signed with SHA-1", none, func(c *luatest.Cluster, leaf *luatest.Template) ([][]byte, *luatest.Key) {
		leaf.Issuer = luatest.Simple(luatest.CN, "intermediate").DER()
		above := c.Authority(c.CAName, leaf.Issuer, c.SubKey)
		above.Alg = []int{1, 2, 840, 10045, 4, 1}
		return [][]byte{above.Sign(c.CAKey)}, c.SubKey
	}},
	{"through one of the attacker's own", none, func(c *luatest.Cluster, leaf *luatest.Template) ([][]byte, *luatest.Key) {
		leaf.Issuer = luatest.Simple(luatest.CN, "intermediate").DER()
		return [][]byte{c.Authority(c.CAName, leaf.Issuer, c.SubKey).Sign(c.SubKey)}, c.SubKey
	}},
	{"without the intermediate", none, func(c *luatest.Cluster, leaf *luatest.Template) ([][]byte, *luatest.Key) {
		leaf.Issuer = luatest.Simple(luatest.CN, "intermediate").DER()
		return nil, c.SubKey
	}},
	{"names outside an intermediate's constraints", none, func(c *luatest.Cluster, leaf *luatest.Template) ([][]byte, *luatest.Key) {
		leaf.Extensions = append(leaf.Extensions, luatest.Names(luatest.General{Tag: 2, Value: "a.other.com"}))
		return through("", "", luatest.Constraints(true, []luatest.General{{Tag: 2, Value: "example.com"}}, nil)).make(c, leaf)
	}},
	{"names inside an intermediate's constraints", user, func(c *luatest.Cluster, leaf *luatest.Template) ([][]byte, *luatest.Key) {
		leaf.Extensions = append(leaf.Extensions, luatest.Names(luatest.General{Tag: 2, Value: "a.example.com"}))
		return through("", "", luatest.Constraints(true, []luatest.General{{Tag: 2, Value: "example.com"}}, nil)).make(c, leaf)
	}},
}

func (s subject) chain(c *luatest.Cluster) ([][]byte, *luatest.Key) {
	leaf := c.Leaf()
	leaf.Subject = luatest.Simple(luatest.CN, "alice", luatest.O, "group").DER()
	above, issuer := s.make(c, &leaf)
	if issuer == nil {
		issuer = c.CAKey
	}
	return append([][]byte{leaf.Sign(issuer)}, above...), leaf.Key
}

func ask(t *testing.T, e *luatest.Envoy, chain [][]byte, key *luatest.Key, headers ...string) luatest.Answer {
	t.Helper()
	a, err := e.Ask(chain, key.Private, headers...)
	if err != nil {
		t.Fatalf("asking through Envoy: %v\n%s", err, e.Log())
	}
	return a
}

func TestEveryKindOfCertificateIsTheSameUserInEnvoyAsInTheAPIServer(t *testing.T) {
	c := luatest.NewCluster(t)
	e := startFront(t, c)
	http2 := luatest.Start(t, luatest.Config{Script: script(c), CAFile: c.CAFile, CertFile: c.CertFile, KeyFile: c.KeyFile, HTTP2: true})
	for _, s := range subjects {
		t.Run(s.what, func(t *testing.T) {
			chain, key := s.chain(c)
			want := luatest.APIServer(chain, key, c.CA)
			if want.Kind != s.kind {
				t.Fatalf("the apiserver's verdict is %v, the test's %s", want, s.kind)
			}
			got := ask(t, e, chain, key).Front()
			if !got.Equal(want) {
				t.Errorf("\napiserver: %v\nfront:     %v\n%s", want, got, luatest.Describe(chain))
			}
			a, err := http2.AskOver(tls.VersionTLS12, chain, key.Private)
			if err != nil {
				t.Fatal(err)
			}
			if got = a.Front(); !got.Equal(want) {
				t.Errorf("\napiserver:             %v\nfront, TLS 1.2, HTTP/2: %v\n%s", want, got, luatest.Describe(chain))
			}
		})
	}
	t.Run("no certificate", func(t *testing.T) {
		if got := ask(t, e, nil, c.LeafKey).Front(); got.Kind != "plain" {
			t.Errorf("without a certificate: %v", got)
		}
	})
}

// Words of the refusal tell what is wrong, and hold nothing of the certificate.
func TestARefusalSaysWhatIsWrongAndEchoesNothing(t *testing.T) {
	c := luatest.NewCluster(t)
	e := startFront(t, c)
	for what, words := range map[string]string{
		"NUL in CN":             "the client certificate's common name holds a control character",
		"line feed in CN":       "the client certificate's common name holds a control character",
		"an empty group":        "an organization of the client certificate is empty",
		"blank after a group":   "an organization of the client certificate begins or ends with a blank",
		"tab in a UID":          "the client certificate's UID holds a control character",
		"UniversalString":       "malformed client certificate: unsupported string type",
		"a duplicate extension": "malformed client certificate: duplicate extension",
	} {
		chain, key := find(t, what).chain(c)
		a := ask(t, e, chain, key)
		want := `{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","message":"` + words + `","reason":"Unauthorized","code":401}` + "\n"
		if a.Status != 401 || a.Body != want {
			t.Errorf("%s: %d %s(%v), want 401 %s", what, a.Status, a.Body, a.Handshake, want)
		}
	}
}

func find(t *testing.T, what string) subject {
	t.Helper()
	for _, s := range subjects {
		if s.what == what {
			return s
		}
	}
	t.Fatalf("no subject %q", what)
	return subject{}
}

func TestClientsCannotSetAnIdentityOrARoute(t *testing.T) {
	c := luatest.NewCluster(t)
	e := startFront(t, c)
	forged := []string{
		"X-Remote-User: admin", "x-remote-user: admin", "X-REMOTE-GROUP: system:masters", "X-Remote-Group: a", "X-Remote-Uid: 1",
		"X-Remote-Extra-Foo: bar", "x-remote-extra-authentication.kubernetes.io%2fcredential-id: x", "X-Remote-Extra-: y", "X-Id-State: fp", "x-gvr: apps/v1/deployments",
		"X-Subresource: status", "X-Kubernetes-Peer-Proxied: true", "Connection: x-remote-user",
	}
	kept := map[string]bool{"X-Id-State": true, "X-Gvr": true, "X-Forwarded-Proto": true, "User-Agent": true, "Accept-Encoding": true}
	expired, key := find(t, "expired").chain(c)
	alice, _ := find(t, "a UID").chain(c)
	for what, chain := range map[string][][]byte{"no certificate": nil, "expired": expired, "alice": alice} {
		a := ask(t, e, chain, key, forged...)
		if a.Echo == nil {
			t.Fatalf("%s: %d %s", what, a.Status, a.Body)
		}
		for name, values := range a.Echo.Headers {
			own := what == "alice" && strings.HasPrefix(name, "X-Remote-") && len(values) == 1 && name != "X-Remote-Extra-Foo" && name != "X-Remote-Extra-"
			if !kept[name] && !own || len(values) != 1 {
				t.Errorf("%s: %s: %q arrived", what, name, values)
			}
		}
		if v := a.Front(); what == "alice" && (v.Name != "alice" || v.UID != "uid-123" || len(v.Groups) != 0) {
			t.Errorf("alice arrived as %v", v)
		}
		if v := a.Echo.Headers.Get("X-Gvr"); v != "/v1/pods" {
			t.Errorf("%s: x-gvr is %q", what, v)
		}
	}
}

func startScript(t *testing.T, c *luatest.Cluster, script string) *luatest.Envoy {
	t.Helper()
	return luatest.Start(t, luatest.Config{Script: script, CAFile: c.CAFile, CertFile: c.CertFile, KeyFile: c.KeyFile})
}

func script(c *luatest.Cluster) string { return lua.Front(lua.Config{CAFile: c.CAFile}) }

func TestTheReadersChainLetsOnlyAllowedNamesIn(t *testing.T) {
	c := luatest.NewCluster(t)
	e := startScript(t, c, lua.Reader(lua.Config{CAFile: c.CAFile, Allowed: []string{"xds-server", `a"]\b`}}))
	get := func(n luatest.Name) luatest.Answer {
		leaf := c.Leaf()
		leaf.Subject = n.DER()
		return ask(t, e, [][]byte{leaf.Sign(c.CAKey)}, leaf.Key)
	}
	for _, name := range []string{"xds-server", `a"]\b`} {
		a := get(luatest.Simple(luatest.CN, name, luatest.O, "readers"))
		if v := a.Front(); v.Name != name || len(v.Groups) != 1 || a.Echo.Headers.Get("X-Id-State") != "fp" {
			t.Errorf("%s: %v", name, v)
		}
	}
	for name, n := range map[string]luatest.Name{
		"another": luatest.Simple(luatest.CN, "xds-server2"), "first of two": luatest.Simple(luatest.CN, "xds-server", luatest.CN, "other"),
	} {
		if a := get(n); a.Status != http.StatusForbidden {
			t.Errorf("%s: %d %s", name, a.Status, a.Body)
		}
	}
	for what, n := range map[string]luatest.Name{"no name": luatest.Simple(luatest.CN, ""), "a control character": luatest.Simple(luatest.CN, "xds-server\x00")} {
		if a := get(n); a.Status != http.StatusUnauthorized {
			t.Errorf("%s: %d %s", what, a.Status, a.Body)
		}
	}
	expired, key := find(t, "expired").chain(c)
	for what, chain := range map[string][][]byte{"expired": expired, "none": nil} {
		if a := ask(t, e, chain, key); a.Status != http.StatusUnauthorized {
			t.Errorf("%s: %d %s", what, a.Status, a.Body)
		}
	}
}
