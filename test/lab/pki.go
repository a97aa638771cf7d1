package lab

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"time"
)

// A Pair is a certificate and its private key.
type Pair struct {
	Cert *x509.Certificate
	Key  crypto.Signer
	// Chain are intermediate authorities, shown with the certificate.
	Chain []*x509.Certificate
}

// NewCA makes a certificate authority.
func NewCA(cn string) (*Pair, error) {
	return issue(nil, &x509.Certificate{
		Subject:               pkix.Name{CommonName: cn},
		DNSNames:              []string{cn},
		IsCA:                  true,
		BasicConstraintsValid: true,
		KeyUsage:              x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature | x509.KeyUsageKeyEncipherment,
		NotAfter:              time.Now().AddDate(10, 0, 0),
	})
}

// Issue makes a certificate from a template, signed by this authority. What the
// template leaves open gets a usual value: a serial number, one year of
// validity, the key usage of an end entity.
func (ca *Pair) Issue(template *x509.Certificate) (*Pair, error) { return issue(ca, template) }

// IssueClient makes a client certificate for a user in groups.
func (ca *Pair) IssueClient(user string, groups ...string) (*Pair, error) {
	return ca.Issue(&x509.Certificate{
		Subject:     pkix.Name{CommonName: user, Organization: groups},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	})
}

func issue(ca *Pair, template *x509.Certificate) (*Pair, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	t := *template
	if t.SerialNumber == nil {
		if t.SerialNumber, err = rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 63)); err != nil {
			return nil, err
		}
	}
	if t.NotBefore.IsZero() {
		t.NotBefore = time.Now().Add(-5 * time.Minute)
	}
	if t.NotAfter.IsZero() {
		t.NotAfter = time.Now().AddDate(1, 0, 0)
	}
	if t.KeyUsage == 0 {
		t.KeyUsage = x509.KeyUsageDigitalSignature | x509.KeyUsageKeyEncipherment
	}
	signer := &Pair{Cert: &t, Key: key}
	if ca != nil {
		signer = ca
	}
	der, err := x509.CreateCertificate(rand.Reader, &t, signer.Cert, key.Public(), signer.Key)
	if err != nil {
		return nil, fmt.Errorf("issuing a certificate for %q: %w", t.Subject, err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, fmt.Errorf("reading the certificate for %q back: %w", t.Subject, err)
	}
	return &Pair{Cert: cert, Key: key}, nil
}

// TLS is the pair as crypto/tls takes it.
func (p *Pair) TLS() *tls.Certificate {
	shown := [][]byte{p.Cert.Raw}
	for _, c := range p.Chain {
		shown = append(shown, c.Raw)
	}
	return &tls.Certificate{Certificate: shown, PrivateKey: p.Key, Leaf: p.Cert}
}

// CertPEM is the certificate in PEM.
func (p *Pair) CertPEM() []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: p.Cert.Raw})
}

// KeyPEM is the private key in PEM.
func (p *Pair) KeyPEM() []byte {
	der, err := x509.MarshalPKCS8PrivateKey(p.Key)
	if err != nil {
		panic(err) // not for a key that this package made
	}
	return pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})
}

// Write writes dir/name.crt and dir/name.key in place, as kubeadm does.
func (p *Pair) Write(dir, name string) error {
	file := filepath.Join(dir, name)
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		return err
	}
	if err := os.WriteFile(file+".crt", p.CertPEM(), 0o644); err != nil {
		return err
	}
	return os.WriteFile(file+".key", p.KeyPEM(), 0o600)
}

// A PKI is what the nodes of one cluster share.
type PKI struct {
	CA, FrontProxyCA, EtcdCA *Pair
	ServiceAccount           crypto.Signer
}

// NewPKI makes the authorities of a cluster, named as kubeadm names them.
func NewPKI() (*PKI, error) {
	var p PKI
	for cn, ca := range map[string]**Pair{
		"kubernetes": &p.CA, "front-proxy-ca": &p.FrontProxyCA, "etcd-ca": &p.EtcdCA,
	} {
		var err error
		if *ca, err = NewCA(cn); err != nil {
			return nil, err
		}
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	p.ServiceAccount = key
	return &p, err
}

// XDSServerUser is the user that xds-server reads the cluster as.
const XDSServerUser = "system:xds-server"

// WriteNode writes one node's pki directory: kubeadm's files, and xds-server's
// own certificate.
func (p *PKI) WriteNode(dir, hostname string, addresses ...net.IP) error {
	for name, ca := range map[string]*Pair{"ca": p.CA, "front-proxy-ca": p.FrontProxyCA, "etcd/ca": p.EtcdCA} {
		if err := ca.Write(dir, name); err != nil {
			return fmt.Errorf("writing %s: %w", name, err)
		}
	}
	server := []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
	client := []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}
	both := append(server, client...)
	subject := func(cn string, o ...string) pkix.Name { return pkix.Name{CommonName: cn, Organization: o} }
	for _, c := range []struct {
		name string
		ca   *Pair
		x509.Certificate
	}{
		{"apiserver", p.CA, x509.Certificate{Subject: subject("kube-apiserver"), ExtKeyUsage: server, IPAddresses: addresses,
			DNSNames: []string{"kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc.cluster.local", hostname}}},
		{"apiserver-kubelet-client", p.CA, x509.Certificate{Subject: subject("kube-apiserver-kubelet-client", "kubeadm:cluster-admins"), ExtKeyUsage: client}},
		{"apiserver-etcd-client", p.EtcdCA, x509.Certificate{Subject: subject("kube-apiserver-etcd-client"), ExtKeyUsage: client}},
		{"front-proxy-client", p.FrontProxyCA, x509.Certificate{Subject: subject("front-proxy-client"), ExtKeyUsage: client}},
		{"xds-server", p.CA, x509.Certificate{Subject: subject(XDSServerUser), ExtKeyUsage: both, IPAddresses: addresses,
			DNSNames: []string{"xds-server.kube-system.svc", hostname}}},
	} {
		pair, err := c.ca.Issue(&c.Certificate)
		if err != nil {
			return err
		}
		if err := pair.Write(dir, c.name); err != nil {
			return fmt.Errorf("writing %s: %w", c.name, err)
		}
	}
	return p.writeServiceAccount(dir)
}

func (p *PKI) writeServiceAccount(dir string) error {
	key := (&Pair{Key: p.ServiceAccount}).KeyPEM()
	if err := os.WriteFile(filepath.Join(dir, "sa.key"), key, 0o600); err != nil {
		return fmt.Errorf("writing the service account key: %w", err)
	}
	der, err := x509.MarshalPKIXPublicKey(p.ServiceAccount.Public())
	if err != nil {
		return err
	}
	pub := pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der})
	return os.WriteFile(filepath.Join(dir, "sa.pub"), pub, 0o600)
}
