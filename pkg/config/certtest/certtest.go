// Package certtest makes certificates for tests.
package certtest

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// CA issues certificates.
type CA struct {
	t    testing.TB
	Cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

// Change alters a certificate before it is signed.
type Change func(*x509.Certificate)

// Expired makes a certificate that ended a minute ago.
func Expired(c *x509.Certificate) { c.NotAfter = time.Now().Add(-time.Minute) }

// Future makes a certificate that begins in an hour.
func Future(c *x509.Certificate) { c.NotBefore = time.Now().Add(time.Hour) }

// DNS adds names to a certificate.
func DNS(names ...string) Change {
	return func(c *x509.Certificate) { c.DNSNames = append(c.DNSNames, names...) }
}

// Organization sets the groups of a certificate.
func Organization(o ...string) Change {
	return func(c *x509.Certificate) { c.Subject.Organization = o }
}

// Usages sets what a certificate is for.
func Usages(u ...x509.ExtKeyUsage) Change {
	return func(c *x509.Certificate) { c.ExtKeyUsage = u }
}

// NewCA makes a CA.
func NewCA(t testing.TB, name string, changes ...Change) *CA {
	t.Helper()
	ca := &CA{t: t, key: newKey(t)}
	ca.Cert = ca.selfSigned(name, changes...)
	return ca
}

// Reissue makes another certificate of the same CA, with the same key.
func (ca *CA) Reissue(name string) *CA {
	return &CA{t: ca.t, key: ca.key, Cert: ca.selfSigned(name)}
}

func (ca *CA) selfSigned(name string, changes ...Change) *x509.Certificate {
	c := template(name)
	c.IsCA, c.BasicConstraintsValid, c.KeyUsage, c.ExtKeyUsage = true, true, x509.KeyUsageCertSign, nil
	for _, change := range changes {
		change(c)
	}
	return sign(ca.t, c, c, &ca.key.PublicKey, ca.key)
}

// PEM is the CA's certificate.
func (ca *CA) PEM() []byte { return certPEM(ca.Cert) }

// Pool holds the CA.
func (ca *CA) Pool() *x509.CertPool {
	p := x509.NewCertPool()
	p.AddCert(ca.Cert)
	return p
}

// Issue makes a certificate for clients and servers and gives it and its key in PEM.
func (ca *CA) Issue(commonName string, changes ...Change) (cert, key []byte) {
	ca.t.Helper()
	c := template(commonName)
	for _, change := range changes {
		change(c)
	}
	k := newKey(ca.t)
	der, err := x509.MarshalPKCS8PrivateKey(k)
	if err != nil {
		ca.t.Fatal(err)
	}
	signed := sign(ca.t, c, ca.Cert, &k.PublicKey, ca.key)
	return certPEM(signed), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})
}

// TLS is Issue as crypto/tls uses it.
func (ca *CA) TLS(commonName string, changes ...Change) tls.Certificate {
	ca.t.Helper()
	pair, err := tls.X509KeyPair(ca.Issue(commonName, changes...))
	if err != nil {
		ca.t.Fatal(err)
	}
	return pair
}

// Write puts data into a file in dir and gives its path.
func Write(t testing.TB, dir, name string, data []byte) string {
	t.Helper()
	path := filepath.Join(dir, name)
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func template(name string) *x509.Certificate {
	serial, _ := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 100))
	return &x509.Certificate{
		SerialNumber: serial,
		Subject:      pkix.Name{CommonName: name},
		NotBefore:    time.Now().Add(-time.Hour),
		NotAfter:     time.Now().Add(time.Hour),
		KeyUsage:     x509.KeyUsageDigitalSignature,
		ExtKeyUsage:  []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth},
	}
}

func newKey(t testing.TB) *ecdsa.PrivateKey {
	t.Helper()
	k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return k
}

func sign(t testing.TB, c, parent *x509.Certificate, public *ecdsa.PublicKey, by *ecdsa.PrivateKey) *x509.Certificate {
	t.Helper()
	der, err := x509.CreateCertificate(rand.Reader, c, parent, public, by)
	if err != nil {
		t.Fatal(err)
	}
	signed, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return signed
}

func certPEM(c *x509.Certificate) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: c.Raw})
}
