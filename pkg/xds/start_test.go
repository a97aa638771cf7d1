package xds

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest"
	"go.uber.org/zap/zaptest/observer"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"

	"xds-server/pkg/snapshot"
)

// authority signs certificates.
type authority struct {
	t    *testing.T
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

func newAuthority(t *testing.T) *authority {
	a := &authority{t: t}
	a.cert, a.key = a.sign(&x509.Certificate{
		Subject: pkix.Name{CommonName: "authority"}, IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}, time.Hour)
	return a
}

func (a *authority) sign(c *x509.Certificate, valid time.Duration) (*x509.Certificate, *ecdsa.PrivateKey) {
	a.t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		a.t.Fatal(err)
	}
	c.SerialNumber = big.NewInt(time.Now().UnixNano())
	c.NotBefore, c.NotAfter = time.Now().Add(-2*time.Hour), time.Now().Add(valid)
	c.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}
	parent, signer := a.cert, a.key
	if parent == nil {
		parent, signer, c.ExtKeyUsage = c, key, nil
	}
	der, err := x509.CreateCertificate(rand.Reader, c, parent, key.Public(), signer)
	if err != nil {
		a.t.Fatal(err)
	}
	out, err := x509.ParseCertificate(der)
	if err != nil {
		a.t.Fatal(err)
	}
	return out, key
}

// pair is a certificate for a name, and its key, in PEM.
func (a *authority) pair(cn string, valid time.Duration, dns ...string) (cert, key []byte) {
	a.t.Helper()
	c, k := a.sign(&x509.Certificate{Subject: pkix.Name{CommonName: cn}, DNSNames: dns}, valid)
	der, err := x509.MarshalPKCS8PrivateKey(k)
	if err != nil {
		a.t.Fatal(err)
	}
	return certPEM(c), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})
}

func certPEM(c *x509.Certificate) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: c.Raw})
}

// tcp is a configuration that serves mutual TLS, with its files in a directory.
type tcp struct {
	t   *testing.T
	dir string
	Config
}

func newTCP(t *testing.T, a *authority) *tcp {
	c := &tcp{t: t, dir: t.TempDir()}
	file := func(name string) string { return filepath.Join(c.dir, name) }
	c.Config = Config{
		Address: "127.0.0.1:0", AllowedNames: []string{"node-a", "node-b.example"},
		TLS:       TLSFiles{Cert: file("tls.crt"), Key: file("tls.key"), ClientCA: file("ca.crt")},
		Publisher: snapshot.NewPublisher(zap.NewNop(), prometheus.NewRegistry()), Log: zaptest.NewLogger(t),
	}
	cert, key := a.pair("xds-server", time.Hour, "xds-server")
	c.write("tls.crt", cert)
	c.write("tls.key", key)
	c.write("ca.crt", certPEM(a.cert))
	return c
}

// write overwrites a file in place, as kubeadm does.
func (c *tcp) write(name string, content []byte) {
	c.t.Helper()
	if err := os.WriteFile(filepath.Join(c.dir, name), content, 0o600); err != nil {
		c.t.Fatal(err)
	}
}

// run serves until the test ends.
func run(t *testing.T, c Config) net.Addr {
	t.Helper()
	s, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error)
	go func() { done <- s.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return s.Addrs()[0]
}

// call asks for the server's health with a client certificate, trusting the authority.
func call(t *testing.T, addr net.Addr, trust *authority, cert, key []byte) error {
	t.Helper()
	config := &tls.Config{ServerName: "xds-server", RootCAs: x509.NewCertPool(), MinVersion: tls.VersionTLS12}
	config.RootCAs.AddCert(trust.cert)
	if cert != nil {
		pair, err := tls.X509KeyPair(cert, key)
		if err != nil {
			t.Fatal(err)
		}
		config.Certificates = []tls.Certificate{pair}
	}
	return healthCall(t, addr.String(), credentials.NewTLS(config))
}

func healthCall(t *testing.T, target string, creds credentials.TransportCredentials) error {
	t.Helper()
	conn, err := grpc.NewClient(target, grpc.WithTransportCredentials(creds))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	_, err = healthv1.NewHealthClient(conn).Check(ctx, &healthv1.HealthCheckRequest{})
	return err
}

func TestOnlyClientsWithAnAllowedNameFromTheAuthorityGetIn(t *testing.T) {
	ours, foreign := newAuthority(t), newAuthority(t)
	addr := run(t, newTCP(t, ours).Config)
	for _, c := range []struct {
		who   string
		from  *authority
		cn    string
		dns   []string
		valid time.Duration
		in    bool
	}{
		{"by common name", ours, "node-a", nil, time.Hour, true},
		{"a DNS name, which an apiserver does not ask for either", ours, "some", []string{"node-a"}, time.Hour, false},
		{"another name", ours, "node-z", []string{"z.example"}, time.Hour, false},
		{"a longer name", ours, "node-a2", nil, time.Hour, false},
		{"no name", ours, "", nil, time.Hour, false},
		{"a foreign authority", foreign, "node-a", nil, time.Hour, false},
		{"expired", ours, "node-a", nil, -time.Hour, false},
	} {
		cert, key := c.from.pair(c.cn, c.valid, c.dns...)
		if err := call(t, addr, ours, cert, key); (err == nil) != c.in {
			t.Errorf("%s: %v", c.who, err)
		}
	}
	if err := call(t, addr, ours, nil, nil); err == nil {
		t.Error("without a certificate: let in")
	}
}

func TestOverwrittenTLSFilesAreUsedAtOnceAndBrokenOnesNever(t *testing.T) {
	before, after := newAuthority(t), newAuthority(t)
	c := newTCP(t, before)
	core, logs := observer.New(zap.ErrorLevel)
	c.Log = zap.New(core)
	addr := run(t, c.Config)
	oldCert, oldKey := before.pair("node-a", time.Hour)
	newCert, newKey := after.pair("node-a", time.Hour)
	serverCert, serverKey := after.pair("xds-server", time.Hour, "xds-server")

	// Half of a rotation: certificate and key do not belong together.
	c.write("tls.crt", serverCert)
	for range 3 {
		if err := call(t, addr, before, oldCert, oldKey); err != nil {
			t.Errorf("with half of a rotation done: %v", err)
		}
	}
	if logs.Len() != 1 || !strings.Contains(logs.All()[0].ContextMap()["error"].(string), "tls.crt") {
		t.Errorf("logged %v", logs.All())
	}
	c.write("tls.key", serverKey)
	c.write("ca.crt", certPEM(after.cert))
	if err := call(t, addr, after, newCert, newKey); err != nil {
		t.Errorf("after the rotation: %v", err)
	}
	if err := call(t, addr, after, oldCert, oldKey); err == nil {
		t.Error("after the rotation the old authority is still trusted")
	}
}

func TestWhatCannotWorkIsSaidAtTheStartInOneLine(t *testing.T) {
	a := newAuthority(t)
	expired, expiredKey := a.pair("xds-server", -time.Hour, "xds-server")
	_, otherKey := a.pair("xds-server", time.Hour)
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	for _, c := range []struct {
		what  string
		spoil func(*tcp)
		says  []string
	}{
		{"no certificate", func(c *tcp) { os.Remove(c.TLS.Cert) }, []string{"tls.crt", "no such file"}},
		{"no key", func(c *tcp) { os.Remove(c.TLS.Key) }, []string{"tls.key", "no such file"}},
		{"no CA", func(c *tcp) { os.Remove(c.TLS.ClientCA) }, []string{"ca.crt", "no such file"}},
		{"certificate not given", func(c *tcp) { c.TLS.Cert = "" }, []string{"no certificate file"}},
		{"a directory", func(c *tcp) { c.TLS.ClientCA = c.dir }, []string{"client CA", "is a directory"}},
		{"an empty CA", func(c *tcp) { c.write("ca.crt", nil) }, []string{"ca.crt", "no certificate in it"}},
		{"not PEM", func(c *tcp) { c.write("tls.crt", []byte("x")) }, []string{"tls.crt"}},
		{"another's key", func(c *tcp) { c.write("tls.key", otherKey) }, []string{"tls.crt", "tls.key", "does not match"}},
		{"expired", func(c *tcp) { c.write("tls.crt", expired); c.write("tls.key", expiredKey) }, []string{"tls.crt", "expired at"}},
		{"nobody allowed", func(c *tcp) { c.AllowedNames = nil }, []string{"no client name is allowed"}},
		{"address in use", func(c *tcp) { c.Address = taken.Addr().String() }, []string{taken.Addr().String(), "in use"}},
		{"bad address", func(c *tcp) { c.Address = "127.0.0.1" }, []string{"127.0.0.1", "missing port"}},
		{"nowhere", func(c *tcp) { c.Address = "" }, []string{"neither"}},
		{"no directory", func(c *tcp) { c.Socket = filepath.Join(c.dir, "none", "x.sock") }, []string{"none", "no such file"}},
		{"a file for a socket", func(c *tcp) { c.Socket = c.TLS.Cert }, []string{"tls.crt", "not a socket"}},
		{"a long path", func(c *tcp) { c.Socket = "/" + strings.Repeat("x", 200) }, []string{"longer than"}},
	} {
		t.Run(c.what, func(t *testing.T) {
			config := newTCP(t, a)
			c.spoil(config)
			_, err := New(config.Config)
			if err == nil {
				t.Fatal("no error")
			}
			t.Log(err)
			if strings.Contains(err.Error(), "\n") {
				t.Error("more than one line")
			}
			for _, s := range c.says {
				if !strings.Contains(err.Error(), s) {
					t.Errorf("does not say %q", s)
				}
			}
		})
	}
}

func TestTheSocketIsForItsOwnerAndGroupAndIsTakenOverOnlyFromTheDead(t *testing.T) {
	path := filepath.Join(t.TempDir(), "xds.sock")
	// What a killed server leaves behind.
	dead, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	dead.SetUnlinkOnClose(false)
	_ = dead.Close()

	config := Config{Socket: path, Publisher: snapshot.NewPublisher(zap.NewNop(), prometheus.NewRegistry()), Log: zaptest.NewLogger(t)}
	t.Run("served", func(t *testing.T) {
		run(t, config)
		info, err := os.Lstat(path)
		if err != nil || info.Mode() != os.ModeSocket|0o660 {
			t.Errorf("mode %v, %v", info.Mode(), err)
		}
		if err := healthCall(t, "unix:"+path, insecure.NewCredentials()); err != nil {
			t.Error(err)
		}
		if _, err := New(config); err == nil || !strings.Contains(err.Error(), "another server is answering") {
			t.Errorf("a second server: %v", err)
		}
		if err := healthCall(t, "unix:"+path, insecure.NewCredentials()); err != nil {
			t.Errorf("after the second server: %v", err)
		}
	})
	if _, err := os.Lstat(path); !os.IsNotExist(err) {
		t.Errorf("after the end: %v", err)
	}
}
