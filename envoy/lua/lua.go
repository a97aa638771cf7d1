// Package lua holds the scripts that Envoy runs on every request: who a client certificate stands for, and what a path
// asks for. They are source text, put together from the files here and inlined into the bootstrap.
package lua

import (
	"embed"
	"fmt"
	"slices"
	"strings"
)

//go:embed *.lua
var files embed.FS

// Config is what the scripts have to know of the node.
type Config struct {
	// CAFile holds the certificate authorities of client certificates: kube-apiserver's --client-ca-file.
	CAFile string
	// Allowed are the common names that may use the peer listener's reading chain.
	Allowed []string
}

// identityParts is read in this order: each file declares what the next ones use.
var identityParts = []string{"der.lua", "strings.lua", "x509.lua", "verify.lua", "pem.lua", "identity.lua"}

// Front is the script of the front's routed chain: x-remote-*, x-gvr and x-subresource, and x-id-state last.
func Front(c Config) string {
	return c.script(append(slices.Clone(identityParts), "classify.lua", "accept.lua", "front.lua"))
}

// Fallback is the script of the chain that serves while no route table is known: Front, and the guard that keeps the
// local server's "no such API" from being taken for the cluster's.
func Fallback(c Config) string {
	return c.script(append(slices.Clone(identityParts), "classify.lua", "accept.lua", "front.lua", "guard.lua", "fallback.lua"))
}

// Reader is the script of the peer listener's chain for xds-server's own certificate.
func Reader(c Config) string { return c.script(append(slices.Clone(identityParts), "reader.lua")) }

// PeerGuard is the script that turns a peer's "no such API" into a 503. It belongs on the routes to peers alone
// (LuaPerRoute), so that nothing else pays for it; it looks at responses that carry x-kubernetes-peer-proxied: true.
func PeerGuard() string {
	return Config{}.script([]string{"pem.lua", "classify.lua", "guard.lua", "peerguard.lua"})
}

// UnknownGuard is the script that turns the local server's "no such API" into a 503 while not every server was read. It
// belongs on the routes of an incomplete table (LuaPerRoute).
func UnknownGuard() string {
	return Config{}.script([]string{"pem.lua", "classify.lua", "guard.lua", "fallback.lua"})
}

func (c Config) script(parts []string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "local CONFIG = {ca_file = %s, allowed = {", quote(c.CAFile))
	for _, name := range c.Allowed {
		fmt.Fprintf(&b, "[%s] = true, ", quote(name))
	}
	b.WriteString("}}\n")
	for _, name := range parts {
		text, err := files.ReadFile(name)
		if err != nil {
			panic(err) // embedded: cannot be missing
		}
		b.Write(text)
		b.WriteByte('\n')
	}
	return b.String()
}

// quote writes a Lua string that holds exactly these bytes.
func quote(s string) string {
	var b strings.Builder
	b.WriteByte('"')
	for i := range len(s) {
		if c := s[i]; c < ' ' || c == '"' || c == '\\' || c >= 0x7f {
			fmt.Fprintf(&b, `\%03d`, c)
		} else {
			b.WriteByte(c)
		}
	}
	b.WriteByte('"')
	return b.String()
}
