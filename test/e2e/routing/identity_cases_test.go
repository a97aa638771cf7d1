package routing

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"encoding/base64"
	"encoding/json"
	"errors"
	"net"
	"net/http"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"xds-server/test/e2e/suite"
	"xds-server/test/lab"
	"xds-server/test/plane"
)

type namedCredential struct {
	name string
	lab.Credential
	// stricter is why the front answers 401 where a server does not, if it does: nobody gains anything by that.
	stricter string
}

// diff is the difference between the server's own verdict and the front's, but for what is known.
func (c namedCredential) diff(direct, front verdict) string {
	if c.stricter != "" {
		direct = verdict{Status: http.StatusUnauthorized, Reason: metav1.StatusReasonUnauthorized}
	}
	return direct.diff(front)
}

// allCredentials are certificates, tokens, impersonation, nothing, and mixtures of them.
func allCredentials(s *suite.S, w world) []namedCredential {
	s.Helper()
	var all []namedCredential
	for _, n := range subjects() {
		all = append(all, namedCredential{name: n.name, Credential: lab.Certificate(clientCertificate(s, w.PKI.CA, n.der))})
	}
	all = append(all, certificates(s, w)...)
	return append(all, tokens(s, w)...)
}

var forClients = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}

// certificates are those that differ in other things than their subject.
func certificates(s *suite.S, w world) []namedCredential {
	s.Helper()
	ca, name := w.PKI.CA, pkix.Name{CommonName: "carol", Organization: []string{"lab:admins"}}
	var all []namedCredential
	add := func(what string, p *lab.Pair) {
		all = append(all, namedCredential{name: what, Credential: lab.Certificate(p)})
	}
	leaf := func(what string, change func(*x509.Certificate)) {
		t := x509.Certificate{Subject: name, ExtKeyUsage: forClients}
		change(&t)
		add("certificate "+what, sign(s, ca, t, nil))
	}
	now := time.Now()
	leaf("expired", func(t *x509.Certificate) { t.NotBefore, t.NotAfter = now.Add(-time.Hour), now.Add(-time.Minute) })
	leaf("not yet valid", func(t *x509.Certificate) { t.NotBefore, t.NotAfter = now.Add(time.Hour), now.Add(2*time.Hour) })
	leaf("for servers only", func(t *x509.Certificate) { t.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth} })
	leaf("for servers and clients", func(t *x509.Certificate) { t.ExtKeyUsage = append(forClients[:1:1], x509.ExtKeyUsageServerAuth) })
	leaf("for no particular use", func(t *x509.Certificate) { t.ExtKeyUsage = nil })
	leaf("for any use", func(t *x509.Certificate) { t.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageAny} })
	leaf("signed with SHA-1", func(t *x509.Certificate) { t.SignatureAlgorithm = x509.ECDSAWithSHA1 })
	leaf("signed with SHA-512", func(t *x509.Certificate) { t.SignatureAlgorithm = x509.ECDSAWithSHA512 })
	leaf("with DNS names and addresses", func(t *x509.Certificate) {
		t.DNSNames, t.IPAddresses = []string{"admin", "carol.example"}, []net.IP{net.IPv4(10, 0, 0, 1)}
	})
	unknown := asn1.ObjectIdentifier{1, 3, 6, 1, 4, 1, 57683, 99}
	for _, critical := range []bool{true, false} {
		what := map[bool]string{true: "with an unknown critical extension", false: "with an unknown extension"}[critical]
		leaf(what, func(t *x509.Certificate) {
			t.ExtraExtensions = []pkix.Extension{{Id: unknown, Critical: critical, Value: []byte{5, 0}}}
		})
	}
	leaf("with name constraints of its own", func(t *x509.Certificate) {
		t.PermittedDNSDomains, t.PermittedDNSDomainsCritical = []string{"example"}, true
	})
	leaf("that is an authority itself", func(t *x509.Certificate) { t.IsCA, t.BasicConstraintsValid = true, true })

	carol := x509.Certificate{Subject: name, ExtKeyUsage: forClients}
	for kind, key := range keys(s) {
		add("certificate with a key "+kind, sign(s, ca, carol, key))
	}
	for what, other := range map[string]string{"of a foreign authority": "other", "of a foreign authority of the same name": "kubernetes"} {
		foreign, err := lab.NewCA(other)
		if err != nil {
			s.Fatal(err)
		}
		add("certificate "+what, sign(s, foreign, carol, nil))
	}
	add("certificate of the front-proxy authority", sign(s, w.PKI.FrontProxyCA, carol, nil))
	self := sign(s, ca, carol, nil)
	add("self-signed certificate", sign(s, self, carol, self.Key))
	add("the authority's own certificate", ca)
	tampered := sign(s, ca, carol, nil)
	tampered.Cert = &x509.Certificate{Raw: append([]byte(nil), tampered.Cert.Raw...)}
	tampered.Cert.Raw[len(tampered.Cert.Raw)-1] ^= 1
	add("certificate with a spoilt signature", tampered)
	return append(all, chains(s, w)...)
}

// chains are certificates with an intermediate authority.
func chains(s *suite.S, w world) []namedCredential {
	s.Helper()
	var all []namedCredential
	chain := func(what string, change func(authority, leaf *x509.Certificate), shown bool) {
		a := x509.Certificate{
			Subject: pkix.Name{CommonName: "intermediate"}, IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
		}
		l := x509.Certificate{Subject: pkix.Name{CommonName: "carol", Organization: []string{"lab:admins"}}, ExtKeyUsage: forClients}
		if change != nil {
			change(&a, &l)
		}
		authority := sign(s, w.PKI.CA, a, nil)
		p := sign(s, authority, l, nil)
		if shown {
			p.Chain = []*x509.Certificate{authority.Cert}
		}
		all = append(all, namedCredential{name: "certificate of an intermediate authority" + what, Credential: lab.Certificate(p)})
	}
	chain("", nil, true)
	chain(" that is not shown", nil, false)
	chain(" that is none", func(a, _ *x509.Certificate) { a.IsCA = false }, true)
	chain(" that may not sign", func(a, _ *x509.Certificate) { a.KeyUsage = x509.KeyUsageDigitalSignature }, true)
	chain(" that is expired", func(a, _ *x509.Certificate) {
		a.NotBefore, a.NotAfter = time.Now().Add(-2*time.Hour), time.Now().Add(-time.Hour)
	}, true)
	chain(" for servers only", func(a, _ *x509.Certificate) { a.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth} }, true)
	chain(" with a path length of 0", func(a, _ *x509.Certificate) { a.MaxPathLenZero = true }, true)
	constrained := func(permitted string) func(a, l *x509.Certificate) {
		return func(a, l *x509.Certificate) {
			a.PermittedDNSDomains, a.PermittedDNSDomainsCritical = []string{permitted}, true
			l.DNSNames = []string{"carol.example"}
		}
	}
	chain(" whose name constraints allow it", constrained("example"), true)
	chain(" whose name constraints do not allow it", constrained("other.example"), true)
	chain(" whose name constraints do not matter to it", func(a, l *x509.Certificate) { constrained("other.example")(a, l); l.DNSNames = nil }, true)
	all[len(all)-1].stricter = "BoringSSL wants a certificate under name constraints to have a name that they can be about"
	chain(" that excludes it by address", func(a, l *x509.Certificate) {
		a.ExcludedIPRanges = []*net.IPNet{{IP: net.IPv4(10, 0, 0, 0).To4(), Mask: net.CIDRMask(8, 32)}}
		a.PermittedDNSDomainsCritical, l.IPAddresses = true, []net.IP{net.IPv4(10, 0, 0, 1)}
	}, true)
	return all
}

// keys are the kinds of keys that an apiserver takes.
func keys(s *suite.S) map[string]crypto.Signer {
	s.Helper()
	must := func(k crypto.Signer, err error) crypto.Signer {
		s.Helper()
		if err != nil {
			s.Fatal(err)
		}
		return k
	}
	_, edwards, err := ed25519.GenerateKey(rand.Reader)
	out := map[string]crypto.Signer{"Ed25519": must(edwards, err)}
	for what, curve := range map[string]elliptic.Curve{"P-384": elliptic.P384(), "P-521": elliptic.P521()} {
		k, err := ecdsa.GenerateKey(curve, rand.Reader)
		out[what] = must(k, err)
	}
	k, err := rsa.GenerateKey(rand.Reader, 2048)
	out["RSA 2048"] = must(k, err)
	return out
}

// tokens are bearer tokens and impersonation, alone and with certificates good and bad.
func tokens(s *suite.S, w world) []namedCredential {
	s.Helper()
	alice, bob, robot := w.Token("alice"), w.Token("bob"), serviceAccountToken(s, w, "robot")
	bad := lab.Credential{Token: "no such token"}
	carol := x509.Certificate{Subject: pkix.Name{CommonName: "carol", Organization: []string{"lab:admins"}}, ExtKeyUsage: forClients}
	pair := sign(s, w.PKI.CA, carol, nil)
	carol.NotBefore, carol.NotAfter = time.Now().Add(-time.Hour), time.Now().Add(-time.Minute)
	expired := sign(s, w.PKI.CA, carol, nil)
	nameless := clientCertificate(s, w.PKI.CA, subject(text(o, "system:masters")))
	other, err := lab.NewCA("other")
	if err != nil {
		s.Fatal(err)
	}
	foreign := clientCertificate(s, other, subject(text(cn, "admin"), text(o, "system:masters")))
	header := func(lines ...string) http.Header {
		h := http.Header{}
		for i := 0; i < len(lines); i += 2 {
			h[lines[i]] = append(h[lines[i]], lines[i+1])
		}
		return h
	}
	with := func(c lab.Credential, p *lab.Pair, lines ...string) lab.Credential {
		c.Cert, c.Header = p, header(lines...)
		return c
	}
	basic := "Basic " + base64.StdEncoding.EncodeToString([]byte("admin:admin"))
	whole := []string{
		"Impersonate-User", "dave", "Impersonate-Group", "lab:readers", "Impersonate-Group", "lab:grüße", "Impersonate-Uid", "uid-dave",
		"Impersonate-Extra-Scopes", "one", "Impersonate-Extra-Scopes", "two", "Impersonate-Extra-Acme.com%2fproject", "x, y",
	}
	var all []namedCredential
	add := func(name string, c lab.Credential) { all = append(all, namedCredential{name: name, Credential: c}) }
	add("nothing", lab.Anonymous)
	for _, user := range []string{"admin", "alice", "bob", "nobody"} {
		add("static token of "+user, w.Token(user))
	}
	add("service account token", robot)
	add("service account token with a spoilt signature", lab.Credential{Token: robot.Token[:len(robot.Token)-8] + "AAAAAAAA"})
	add("bad token", bad)
	for what, value := range map[string]string{
		"no token behind Bearer": "Bearer ", "Bearer alone": "Bearer", "a lower-case bearer": "bearer " + alice.Token, "two blanks": "Bearer  " + alice.Token,
		"a token and more": "Bearer " + alice.Token + " more", "a comma": "Bearer " + alice.Token + ",x", "a password": basic, "nothing in it": "",
	} {
		add("Authorization with "+what, with(lab.Anonymous, nil, "Authorization", value))
	}
	add("two Authorization headers, the first good", with(lab.Anonymous, nil, "Authorization", "Bearer "+alice.Token, "Authorization", "Bearer bad"))
	all[len(all)-1].stricter = "Envoy joins them into one; a server looks at the first"
	add("two Authorization headers, the first bad", with(lab.Anonymous, nil, "Authorization", "Bearer bad", "Authorization", "Bearer "+alice.Token))

	add("impersonation of a user with a token", with(alice, nil, "Impersonate-User", "dave"))
	add("impersonation of a user, groups, UID and extras with a token", with(alice, nil, whole...))
	add("impersonation of a service account", with(alice, nil, "Impersonate-User", "system:serviceaccount:default:robot"))
	add("impersonation of the anonymous", with(alice, nil, "Impersonate-User", "system:anonymous"))
	add("impersonation of a group alone", with(alice, nil, "Impersonate-Group", "lab:readers"))
	add("impersonation of a UID alone", with(alice, nil, "Impersonate-Uid", "uid-dave"))
	add("impersonation of two users", with(alice, nil, "Impersonate-User", "dave", "Impersonate-User", "admin"))
	add("impersonation without the right to", with(bob, nil, whole...))
	add("impersonation by nobody", with(lab.Anonymous, nil, whole...))
	add("impersonation with a bad token", with(bad, nil, whole...))
	add("impersonation of a user, groups, UID and extras with a certificate", with(lab.Anonymous, pair, whole...))
	add("impersonation with a foreign certificate", with(lab.Anonymous, foreign, whole...))
	add("impersonation with a foreign certificate and a token", with(alice, foreign, whole...))

	for what, p := range map[string]*lab.Pair{"certificate": pair, "foreign certificate": foreign, "expired certificate": expired, "certificate without a CN": nameless} {
		add(what+" plus good token", with(bob, p))
		add(what+" plus service account token", with(robot, p))
		add(what+" plus bad token", with(bad, p))
		add(what+" plus a password", with(lab.Anonymous, p, "Authorization", basic))
	}
	return all
}

// serviceAccountToken makes a service account and asks for a token, and waits until both servers know it.
func serviceAccountToken(s *suite.S, w world, name string) lab.Credential {
	s.Helper()
	const accounts = "/api/v1/namespaces/default/serviceaccounts"
	admin := s.Client(w.Lab, w.Admin(), lab.HTTP2)
	a := s.Call(admin, "POST", w.old.DirectURL()+accounts, `{"metadata":{"name":"`+name+`"}}`, nil)
	if a.Status != http.StatusCreated && a.Status != http.StatusConflict {
		s.Fatalf("making a service account: %d %s", a.Status, a.Body)
	}
	a = s.Want(admin, "POST", w.old.DirectURL()+accounts+"/"+name+"/token",
		`{"apiVersion":"authentication.k8s.io/v1","kind":"TokenRequest","spec":{"expirationSeconds":3600}}`, http.StatusCreated, "token")
	var answer authenticationv1.TokenRequest
	if err := json.Unmarshal(a.Body, &answer); err != nil {
		s.Fatal(err)
	}
	c := lab.Credential{Token: answer.Status.Token}
	asker := newAsker(s, w, c, lab.HTTP2)
	defer asker.close()
	for _, n := range []*plane.Node{w.old, w.updated} {
		if err := plane.Eventually(s.Ctx, n.Name+" knows the service account", func() error {
			if v := asker.whoAmI(n.DirectURL()); v.Status != http.StatusCreated {
				return errors.New(v.Message)
			}
			return nil
		}); err != nil {
			s.Fatal(err)
		}
	}
	return c
}
