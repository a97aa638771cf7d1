package luatest

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rsa"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net/http"
	"slices"
	"strings"

	x509request "k8s.io/apiserver/pkg/authentication/request/x509"
	"k8s.io/apiserver/pkg/authentication/user"
)

// A Verdict is what becomes of a client certificate.
type Verdict struct {
	// Kind is "user", "none" (the certificate gives no user), "refused" (no request with it is served), or "unsafe" (a
	// user whose name, groups or UID no header can carry).
	Kind   string
	Name   string
	UID    string
	Groups []string
	// Credential is the credential-id.
	Credential string
	// Why is for people.
	Why string
}

// Equal leaves out the reason.
func (v Verdict) Equal(o Verdict) bool {
	return v.Kind == o.Kind && v.Name == o.Name && v.UID == o.UID && slices.Equal(v.Groups, o.Groups) && v.Credential == o.Credential
}

func (v Verdict) String() string {
	return fmt.Sprintf("%s name=%q groups=%q uid=%q credential=%q (%s)", v.Kind, v.Name, v.Groups, v.UID, v.Credential, v.Why)
}

// APIServer is what a kube-apiserver with these client CAs makes of the chain: Go's TLS server, then the x509
// authenticator with CommonNameUserConversion. The client holds this key.
func APIServer(chain [][]byte, key *Key, roots ...[]byte) Verdict {
	certs := make([]*x509.Certificate, len(chain))
	for n, raw := range chain {
		c, err := x509.ParseCertificate(raw)
		if err != nil {
			return Verdict{Kind: "refused", Why: err.Error()}
		}
		if k, ok := c.PublicKey.(*rsa.PublicKey); ok && k.N.BitLen() > 8192 {
			return Verdict{Kind: "refused", Why: "RSA key too large for TLS"}
		}
		certs[n] = c
	}
	switch k := certs[0].PublicKey.(type) {
	case ed25519.PublicKey:
	case *ecdsa.PublicKey:
		if k.Curve == elliptic.P224() {
			return Verdict{Kind: "refused", Why: "TLS has no signatures of this curve"}
		}
	case *rsa.PublicKey:
		if k.N.BitLen() < 1024 {
			return Verdict{Kind: "refused", Why: "RSA key too small for TLS"}
		}
	default:
		return Verdict{Kind: "refused", Why: "key unsupported by TLS"}
	}
	if pub, ok := certs[0].PublicKey.(interface{ Equal(crypto.PublicKey) bool }); !ok || !pub.Equal(key.Private.Public()) {
		return Verdict{Kind: "refused", Why: "the client does not hold this key"}
	}
	opts := x509request.DefaultVerifyOptions()
	opts.Roots = x509.NewCertPool()
	for _, raw := range roots {
		c, err := x509.ParseCertificate(raw)
		if err != nil {
			panic(fmt.Sprintf("the test's own CA: %v", err))
		}
		opts.Roots.AddCert(c)
	}
	a := x509request.New(opts, x509request.CommonNameUserConversion)
	res, ok, err := a.AuthenticateRequest(&http.Request{TLS: &tls.ConnectionState{PeerCertificates: certs}})
	if err != nil || !ok {
		return Verdict{Kind: "none", Why: fmt.Sprint(err)}
	}
	v := Verdict{Kind: "user", Name: res.User.GetName(), UID: res.User.GetUID(), Groups: res.User.GetGroups()}
	v.Credential = strings.Join(res.User.GetExtra()[user.CredentialIDKey], " ")
	values := append([]string{v.Name}, v.Groups...)
	if v.UID != "" {
		values = append(values, v.UID)
	}
	if slices.ContainsFunc(values, unsafe) {
		return Verdict{Kind: "unsafe", Why: "cannot be a header"}
	}
	return v
}

// unsafe tells of a value that does not arrive unchanged in a header field.
func unsafe(v string) bool {
	return v == "" || v != strings.Trim(v, " ") || strings.ContainsFunc(v, func(r rune) bool { return r < ' ' || r == 0x7f })
}

// Front is what Envoy has made of it: the identity headers that a server behind it saw, or the refusal.
func (a Answer) Front() Verdict {
	switch {
	case a.Handshake != nil:
		return Verdict{Kind: "refused", Why: a.Handshake.Error()}
	case a.Status == http.StatusUnauthorized && strings.Contains(a.Body, "client certificate"):
		kind := "refused"
		if strings.Contains(a.Body, "control character") || strings.Contains(a.Body, "is empty") || strings.Contains(a.Body, "blank") {
			kind = "unsafe"
		}
		return Verdict{Kind: kind, Why: strings.TrimSpace(a.Body)}
	case a.Echo == nil:
		return Verdict{Kind: "error", Why: fmt.Sprintf("%d %s", a.Status, a.Body)}
	}
	h := a.Echo.Headers
	why := "x-id-state " + h.Get("X-Id-State")
	if h.Get("X-Id-State") == "plain" {
		return Verdict{Kind: "plain", Why: why}
	}
	if h.Get("X-Remote-User") == "" {
		return Verdict{Kind: "none", Why: why}
	}
	return Verdict{
		Kind: "user", Name: h.Get("X-Remote-User"), UID: h.Get("X-Remote-Uid"), Groups: h.Values("X-Remote-Group"),
		Credential: h.Get("X-Remote-Extra-Authentication.kubernetes.io%2fcredential-id"), Why: why,
	}
}
