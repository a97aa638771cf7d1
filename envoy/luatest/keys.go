package luatest

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"encoding/asn1"
	"encoding/pem"
	"fmt"
	"math/big"
	"math/rand/v2"
	"os"
	"path/filepath"
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

// derived is an endless source of bytes that are always the same for a name: so the keys of these tests are, and with them
// every certificate that is made from a seed.
func derived(name string) *rand.ChaCha8 { return rand.NewChaCha8(sha256.Sum256([]byte(name))) }

// P256 is the elliptic curve key of that name.
func P256(name string) *Key { return curve(elliptic.P256(), name) }

func curve(c elliptic.Curve, name string) *Key {
	d := make([]byte, (c.Params().BitSize+7)/8)
	_, _ = derived(name).Read(d)
	d[0] = 0 // below the curve's order
	k, err := ecdsa.ParseRawPrivateKey(c, d)
	return newKey(k, err, ecdsaWithSHA256)
}

// rsaKey is the RSA key of that name.
func rsaKey(bits int, name string) *Key {
	source := derived(name)
	prime := func() *big.Int {
		b := make([]byte, bits/16)
		for {
			_, _ = source.Read(b)
			b[0] |= 0xc0 // so that a product of two has all bits
			b[len(b)-1] |= 1
			p := new(big.Int).SetBytes(b)
			if p.ProbablyPrime(10) && new(big.Int).Mod(p, big.NewInt(65537)).Cmp(big.NewInt(1)) != 0 {
				return p
			}
		}
	}
	p, q, one := prime(), prime(), big.NewInt(1)
	k := &rsa.PrivateKey{PublicKey: rsa.PublicKey{N: new(big.Int).Mul(p, q), E: 65537}, Primes: []*big.Int{p, q}}
	k.D = new(big.Int).ModInverse(big.NewInt(65537), new(big.Int).Mul(p.Sub(p, one), q.Sub(q, one)))
	p.Add(p, one)
	q.Add(q, one)
	k.Precompute()
	return newKey(k, k.Validate(), sha256WithRSA)
}

// Ed25519 is the Edwards curve key of that name.
func Ed25519(name string) *Key {
	seed := make([]byte, ed25519.SeedSize)
	_, _ = derived(name).Read(seed)
	return newKey(ed25519.NewKeyFromSeed(seed), nil, ed25519OID)
}

// A Cluster is a certificate authority that Envoy trusts, keys to make certificates with, and the files Envoy reads.
type Cluster struct {
	CA                        []byte // DER
	CAName                    []byte
	CAKey, LeafKey, SubKey    *Key
	CAFile, CertFile, KeyFile string
	// From and To are when its certificates are valid, unless a test says otherwise.
	From, To time.Time
}

// NewCluster writes a CA, and a serving certificate, into the test's directory.
func NewCluster(tb testing.TB) *Cluster {
	tb.Helper()
	now := time.Now()
	return newCluster(tb, now.Add(-time.Hour), now.Add(time.Hour))
}

func newCluster(tb testing.TB, from, to time.Time) *Cluster {
	tb.Helper()
	c := &Cluster{
		CAName: Simple(CN, "kubernetes").DER(), From: from, To: to,
		CAKey: P256("authority"), LeafKey: P256("leaf"), SubKey: P256("intermediate"),
	}
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
		NotBefore: c.From, NotAfter: c.To,
		Extensions: []Extension{Bits(0, 2, 5), Authority(true, -1), Identified(key)},
	}
}

// Leaf is the template of an ordinary client certificate; its subject is to be set.
func (c *Cluster) Leaf() Template {
	return Template{
		Version: 2, Issuer: c.CAName, Key: c.LeafKey, Subject: Simple(CN, "alice").DER(),
		NotBefore: c.From, NotAfter: c.To,
		Extensions: []Extension{Bits(0, 2), Usages(ClientAuth)},
	}
}
