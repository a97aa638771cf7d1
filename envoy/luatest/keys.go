package luatest

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/asn1"
	"encoding/pem"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"
)

// A Key signs certificates, or is certified by one.
type Key struct {
	Private crypto.Signer
	SPKI    []byte
	Alg     asn1.ObjectIdentifier
}

func newKey(k crypto.Signer, err error, alg asn1.ObjectIdentifier) *Key {
	if err != nil {
		panic(fmt.Sprintf("making a test key: %v", err))
	}
	spki, err := x509.MarshalPKIXPublicKey(k.Public())
	if err != nil {
		panic(fmt.Sprintf("encoding a test key: %v", err))
	}
	return &Key{k, spki, alg}
}

// P256 makes an elliptic curve key.
func P256() *Key { return curve(elliptic.P256()) }

func curve(c elliptic.Curve) *Key {
	k, err := ecdsa.GenerateKey(c, rand.Reader)
	return newKey(k, err, ecdsaWithSHA256)
}

// RSA makes an RSA key; GODEBUG=rsa1024min=0 is needed below 1024 bits.
func RSA(bits int) *Key {
	k, err := rsa.GenerateKey(rand.Reader, bits)
	return newKey(k, err, sha256WithRSA)
}

// Ed25519 makes an Edwards curve key.
func Ed25519() *Key {
	_, k, err := ed25519.GenerateKey(rand.Reader)
	return newKey(k, err, ed25519OID)
}

// A Cluster is a certificate authority that Envoy trusts, keys to make certificates with, and the files Envoy reads.
type Cluster struct {
	CA                        []byte // DER
	CAName                    []byte
	CAKey, LeafKey, SubKey    *Key
	CAFile, CertFile, KeyFile string
	Now                       time.Time
}

var keys = sync.OnceValue(func() [3]*Key { return [3]*Key{P256(), P256(), P256()} })

// NewCluster writes a CA, and a serving certificate, into the test's directory.
func NewCluster(tb testing.TB) *Cluster {
	tb.Helper()
	c := &Cluster{CAName: Simple(CN, "kubernetes").DER(), Now: time.Now()}
	k := keys()
	c.CAKey, c.LeafKey, c.SubKey = k[0], k[1], k[2]
	c.CA = c.Root()
	dir := tb.TempDir()
	c.CAFile, c.CertFile, c.KeyFile = filepath.Join(dir, "ca.crt"), filepath.Join(dir, "tls.crt"), filepath.Join(dir, "tls.key")
	c.WriteCA(tb, c.CA)

	serving := c.Leaf()
	serving.Subject = Simple(CN, "kube-apiserver").DER()
	serving.Extensions = []Extension{Usages(ServerAuth), Names(General{2, "kubernetes.default.svc"})}
	key, err := x509.MarshalPKCS8PrivateKey(c.LeafKey.Private)
	if err != nil {
		tb.Fatal(err)
	}
	write(tb, c.CertFile, "CERTIFICATE", serving.Sign(c.CAKey))
	write(tb, c.KeyFile, "PRIVATE KEY", key)
	return c
}

// WriteCA replaces the CA file, in place as kubeadm does.
func (c *Cluster) WriteCA(tb testing.TB, certs ...[]byte) {
	tb.Helper()
	write(tb, c.CAFile, "CERTIFICATE", certs...)
}

func write(tb testing.TB, file, kind string, blocks ...[]byte) {
	tb.Helper()
	var out []byte
	for _, b := range blocks {
		out = append(out, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: b})...)
	}
	if err := os.WriteFile(file, out, 0o600); err != nil {
		tb.Fatal(err)
	}
}

// Root is the cluster's CA certificate, as kubeadm makes it.
func (c *Cluster) Root(more ...Extension) []byte {
	t := c.Authority(c.CAName, c.CAName, c.CAKey)
	t.Extensions = append(t.Extensions, more...)
	return t.Sign(c.CAKey)
}

// Authority is the template of a CA certificate.
func (c *Cluster) Authority(issuer, subject []byte, key *Key) Template {
	return Template{
		Version: 2, Issuer: issuer, Subject: subject, Key: key,
		NotBefore: c.Now.Add(-time.Hour), NotAfter: c.Now.Add(time.Hour),
		Extensions: []Extension{Bits(0, 2, 5), Authority(true, -1), Identified(key)},
	}
}

// Leaf is the template of an ordinary client certificate; its subject is to be set.
func (c *Cluster) Leaf() Template {
	return Template{
		Version: 2, Issuer: c.CAName, Key: c.LeafKey, Subject: Simple(CN, "alice").DER(),
		NotBefore: c.Now.Add(-time.Hour), NotAfter: c.Now.Add(time.Hour),
		Extensions: []Extension{Bits(0, 2), Usages(ClientAuth)},
	}
}
