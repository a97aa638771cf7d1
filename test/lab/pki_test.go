package lab

import (
	"crypto/tls"
	"crypto/x509"
	"net"
	"os"
	"path/filepath"
	"slices"
	"testing"
)

func TestANodeHasTheFilesThatKubeadmWrites(t *testing.T) {
	p, err := NewPKI()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	ip := net.IPv4(10, 0, 1, 11)
	if err := p.WriteNode(dir, "node-1", ip, net.IPv4(10, 96, 0, 1)); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{
		"ca.key", "front-proxy-ca.key", "etcd/ca.key", "sa.key", "sa.pub",
	} {
		if _, err := os.Stat(filepath.Join(dir, name)); err != nil {
			t.Error(err)
		}
	}
	for _, c := range []struct {
		name, ca string
		usage    x509.ExtKeyUsage
		cn       string
	}{
		{"apiserver", "ca", x509.ExtKeyUsageServerAuth, "kube-apiserver"},
		{"apiserver-kubelet-client", "ca", x509.ExtKeyUsageClientAuth, "kube-apiserver-kubelet-client"},
		{"apiserver-etcd-client", "etcd/ca", x509.ExtKeyUsageClientAuth, "kube-apiserver-etcd-client"},
		{"front-proxy-client", "front-proxy-ca", x509.ExtKeyUsageClientAuth, "front-proxy-client"},
		{"xds-server", "ca", x509.ExtKeyUsageClientAuth, "system:xds-server"},
		{"xds-server", "ca", x509.ExtKeyUsageServerAuth, "system:xds-server"},
	} {
		file := filepath.Join(dir, c.name)
		pair, err := tls.LoadX509KeyPair(file+".crt", file+".key")
		if err != nil {
			t.Errorf("%s: %v", c.name, err)
			continue
		}
		ca, err := os.ReadFile(filepath.Join(dir, c.ca+".crt"))
		if err != nil {
			t.Fatal(err)
		}
		roots := x509.NewCertPool()
		roots.AppendCertsFromPEM(ca)
		if _, err := pair.Leaf.Verify(x509.VerifyOptions{Roots: roots, KeyUsages: []x509.ExtKeyUsage{c.usage}}); err != nil {
			t.Errorf("%s is not what %s issued: %v", c.name, c.ca, err)
		}
		if cn := pair.Leaf.Subject.CommonName; cn != c.cn {
			t.Errorf("%s is for %q, want %q", c.name, cn, c.cn)
		}
		if c.name != "apiserver" {
			continue
		}
		for _, host := range []string{"kubernetes.default.svc", "node-1", "10.0.1.11", "10.96.0.1"} {
			if err := pair.Leaf.VerifyHostname(host); err != nil {
				t.Error(err)
			}
		}
	}
}

func TestAClientCertificateCarriesItsUserAndGroups(t *testing.T) {
	ca, err := NewCA("kubernetes")
	if err != nil {
		t.Fatal(err)
	}
	p, err := ca.IssueClient("carol", "b", "a", "system:masters")
	if err != nil {
		t.Fatal(err)
	}
	// The groups are one set in the certificate, and DER sorts sets.
	if s := p.Cert.Subject; s.CommonName != "carol" || !slices.Equal(s.Organization, []string{"a", "b", "system:masters"}) {
		t.Errorf("the subject is %v", s)
	}
}
