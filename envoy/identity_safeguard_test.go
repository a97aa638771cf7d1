package envoy_test

import (
	"context"
	"net/http"
	"strings"
	"testing"
	"time"

	"xds-server/envoy/luatest"
)

// without is the script with one safeguard taken out. The text must stand in it exactly once.
func without(t *testing.T, script, safeguard, instead string) string {
	t.Helper()
	if n := strings.Count(script, safeguard); n != 1 {
		t.Fatalf("the safeguard stands %d times in the script: %s", n, safeguard)
	}
	return strings.Replace(script, safeguard, instead, 1)
}

// What each safeguard is good for: without it, the certificate would be taken for somebody.
var safeguards = []struct {
	what               string // the subject that it keeps out
	safeguard, instead string
	name               string // who it would be
	groups             string
}{
	{"last of two CNs empty", `if oid == CN then c.cn = v`, `if oid == CN and v ~= "" then c.cn = v`, "admin", "system:masters"},
	{"UniversalString", `if not f then error("unsupported string type", 0) end`, `if not f then return (s:gsub("%z", "")) end`, "a", "group"},
	{"PrintableString with other characters", `if find(s, "[^a-zA-Z0-9'()+,%-./ :=?*&]") then error("invalid PrintableString", 0) end`, ``, "a@b", "group"},
	{"NUL in CN", `if find(v, "[%z\1-\31\127]") then return "holds a control character" end`, ``, "admin", ""},
	{"blank before the name", `if find(v, "^ ") or find(v, " $") then return "begins or ends with a blank" end`, ``, "admin", ""},
	{"an empty group", `if v == "" then return "is empty" end`, ``, "a", " b"},
	{"two UIDs", `#leaf.uids > 1 or `, ``, "alice", ""},
	{"expired", `now < c.notbefore or now >= c.notafter`, `now < c.notbefore`, "alice", "group"},
	{"not yet valid", `now < c.notbefore or now >= c.notafter`, `now >= c.notafter`, "alice", "group"},
	{"of a foreign CA", `return h:verifySignature(c.signed.hash, key, c.signature, #c.signature, c.tbs, #c.tbs) == true`, `return true`, "alice", "group"},
	{"a spoiled signature", `return h:verifySignature(c.signed.hash, key, c.signature, #c.signature, c.tbs, #c.tbs) == true`, `return true`, "alice", "group"},
	{"of a foreign CA with another name", `if not trust.validated then return false end`, `trust.check = function() return true end for _, r in ipairs(roots) do r.loosesubject, r.subject = leaf.looseissuer, leaf.issuer end`, "alice", "group"},
	{"the CA's name in other letters", `if #chain > 0 and chain[#chain].issuer ~= c.subject then return false end`, ``, "alice", "group"},
	{"without clientAuth", `if c.restricted and not c.clientauth then return false end`, ``, "alice", "group"},
	{"SHA-1", `[id "1.2.840.10045.4.3.2"] = {`, `[id "1.2.840.10045.4.1"] = { key = "ec", hash = "sha1" }, [id "1.2.840.10045.4.3.2"] = {`, "alice", "group"},
	{"through one signed with SHA-1", `[id "1.2.840.10045.4.3.2"] = {`, `[id "1.2.840.10045.4.1"] = { key = "ec", hash = "sha1" }, [id "1.2.840.10045.4.3.2"] = {`, "alice", "group"},
	{"an unknown critical extension", `if unhandled and x[4] then c.unhandled = true end`, ``, "alice", "group"},
	{"a duplicate extension", `if seen[oid] then error("duplicate extension", 0) end`, ``, "alice", "group"},
	{"a malformed IP address", `if #v ~= 4 and #v ~= 16 then error("bad IP address", 0) end`, ``, "alice", "group"},
	{"a negative serial number", `if der.negative(s, first) then error("negative serial number", 0) end`, ``, "alice", "group"},
	{"two algorithms", `if sub(s, x, y) ~= sub(s, p, q) then error("signature algorithms differ", 0) end`, ``, "alice", "group"},
	{"through one of the attacker's own", `if not trust.validated then return false end`, `trust.check = function() end`, "alice", "group"},
}

func TestEachSafeguardOfIdentityKeepsSomebodyOut(t *testing.T) {
	c := luatest.NewCluster(t)
	whole := startFront(t, c)
	for _, s := range safeguards {
		t.Run(s.what, func(t *testing.T) {
			chain, key := find(t, s.what).chain(c)
			if v := ask(t, whole, chain, key).Front(); v.Kind == user {
				t.Fatalf("with the safeguard: %v", v)
			}
			e := startScript(t, c, without(t, script(c), s.safeguard, s.instead))
			v := ask(t, e, chain, key).Front()
			if v.Kind != user || v.Name != s.name || strings.Join(v.Groups, " ") != s.groups {
				t.Errorf("without the safeguard: %v, want %s in %s\n%s", v, s.name, s.groups, e.Log())
			}
		})
	}
}

// Envoy's Lua filter lets a request go on when its script fails.
func TestARequestWhoseIdentityWasNotEvaluatedIsAnswered500(t *testing.T) {
	c := luatest.NewCluster(t)
	chain, key := find(t, "a UID").chain(c)
	failing := without(t, script(c), `headers:replace("x-id-state", out and "fp" or "plain")`, `error("broken") headers:replace("x-id-state", "fp")`)
	e := startScript(t, c, failing)
	if a := ask(t, e, chain, key); a.Status != http.StatusInternalServerError {
		t.Errorf("a failing script: %d %s", a.Status, a.Body)
	}
	// Had it been written first, the request would have gone on.
	first := strings.Replace(failing, `local out = identity.of(h)
  if out and out.deny`, `headers:replace("x-id-state", "plain") local out = identity.of(h)
  if out and out.deny`, 1)
	e = startScript(t, c, first)
	if a := ask(t, e, chain, key); a.Status != http.StatusOK {
		t.Errorf("a failing script that wrote its state first: %d %s", a.Status, a.Body)
	}
}

func TestWithoutACAFileNobodyIsAuthenticated(t *testing.T) {
	c := luatest.NewCluster(t)
	e := startScript(t, c, strings.Replace(script(c), c.CAFile, c.CAFile+".missing", 1))
	chain, key := find(t, "a UID").chain(c)
	if a := ask(t, e, chain, key); a.Status != http.StatusInternalServerError {
		t.Errorf("no CA file: %d %s", a.Status, a.Body)
	}
	if a := ask(t, e, nil, key); a.Front().Kind != "plain" {
		t.Errorf("no CA file, no certificate: %d %s", a.Status, a.Body)
	}
}

// Clients' headers are removed by early_header_mutation; the script removes the three that make an identity again.
func TestForgedHeadersWouldArriveWithoutStripping(t *testing.T) {
	c := luatest.NewCluster(t)
	bare := without(t, script(c), "    headers:remove(\"x-remote-user\")\n    headers:remove(\"x-remote-group\")\n    headers:remove(\"x-remote-uid\")\n", "")
	config := luatest.Config{Script: bare, CAFile: c.CAFile, CertFile: c.CertFile, KeyFile: c.KeyFile, KeepClientHeaders: true}
	expired, key := find(t, "expired").chain(c)
	forged := []string{"X-Remote-User: admin", "X-Remote-Group: system:masters", "X-Remote-Extra-Foo: bar"}
	if v := ask(t, luatest.Start(t, config), expired, key, forged...).Front(); v.Name != "admin" || v.Groups[0] != "system:masters" {
		t.Errorf("without both safeguards: %v", v)
	}
	config.Script = script(c)
	if v := ask(t, luatest.Start(t, config), expired, key, forged...).Front(); v.Kind != none {
		t.Errorf("without early_header_mutation: %v", v)
	}
	config.Script, config.KeepClientHeaders = bare, false
	if a := ask(t, luatest.Start(t, config), expired, key, forged...); a.Front().Kind != none || a.Echo.Headers.Get("X-Remote-Extra-Foo") != "" {
		t.Errorf("without the script's own removal: %v", a.Front())
	}
}

// The same leaf under another chain is another question: nothing is remembered by the leaf alone.
func TestWhatWasAcceptedWithAnIntermediateIsNotAcceptedWithoutIt(t *testing.T) {
	c := luatest.NewCluster(t)
	chain, key := find(t, "through an intermediate").chain(c)
	e := startFront(t, c)
	byLeaf := startScript(t, c, strings.ReplaceAll(script(c), `cache[validated][chain]`, `cache[true][ssl:sha256PeerCertificateDigest()]`))
	for range 8 { // both of Envoy's workers get to know the chain
		if v := ask(t, e, chain, key).Front(); v.Kind != user {
			t.Fatalf("with its intermediate: %v", v)
		}
		ask(t, byLeaf, chain, key)
	}
	for range 8 {
		if v := ask(t, e, chain[:1], key).Front(); v.Kind != none {
			t.Errorf("without its intermediate: %v", v)
		}
	}
	if v := ask(t, byLeaf, chain[:1], key).Front(); v.Kind != user {
		t.Errorf("remembered by the leaf, without its intermediate: %v", v)
	}
}

// An apiserver verifies on every request; so do we on a connection that lives on.
func TestAConnectionLosesItsUserWhenTheCertificateOrTheCAEnds(t *testing.T) {
	c := luatest.NewCluster(t)
	now := without(t, script(c), "local CA_AGE = 2 ", "local CA_AGE = 0 ")
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	request := func(conn *luatest.Conn) luatest.Verdict {
		t.Helper()
		a, err := conn.Do(http.MethodGet, "/api/v1/pods")
		if err != nil {
			t.Fatal(err)
		}
		return a.Front()
	}
	dial := func(e *luatest.Envoy, leaf luatest.Template) *luatest.Conn {
		t.Helper()
		conn, err := e.Dial(ctx, [][]byte{leaf.Sign(c.CAKey)}, leaf.Key.Private, 0)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(conn.Close)
		if v := request(conn); v.Name != "alice" {
			t.Fatalf("at first: %v", v)
		}
		return conn
	}
	until := func(conn *luatest.Conn) luatest.Verdict {
		t.Helper()
		for ctx.Err() == nil {
			if v := request(conn); v.Kind != user {
				return v
			}
		}
		return luatest.Verdict{Kind: user, Why: "still, when the test gave up"}
	}

	e := startScript(t, c, now)
	soon := c.Leaf()
	soon.NotAfter = time.Now().Add(2 * time.Second)
	if v := until(dial(e, soon)); v.Kind != none || time.Now().Before(soon.NotAfter.Truncate(time.Second)) {
		t.Errorf("after its end, and not before: %v", v)
	}

	conn := dial(e, c.Leaf())
	other := luatest.P256("another CA")
	c.WriteCA(t, c.Authority(c.CAName, c.CAName, other).Sign(other))
	if v := until(conn); v.Kind != none {
		t.Errorf("after the CA changed: %v", v)
	}
	// A file that is just being written changes nothing.
	c.WriteCA(t, c.CA)
	e = startScript(t, c, now)
	conn = dial(e, c.Leaf())
	c.WriteCA(t, c.CA[:len(c.CA)-5])
	for range 5 {
		if v := request(conn); v.Kind != user {
			t.Errorf("with half a CA file: %v", v)
		}
	}
}
