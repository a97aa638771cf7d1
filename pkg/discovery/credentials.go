package discovery

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"sync"
	"time"

	"go.uber.org/zap"
)

const (
	// sni tells a node's peer listener that it is xds-server who reads, not a peer that proxies a request.
	sni = "xds-server.kubernetes.default.svc"
	// serverName is what every kube-apiserver's serving certificate is valid for.
	serverName = "kubernetes.default.svc"
)

// Credentials are the files with which servers are read. They are read again when they change, also if they are
// overwritten in place; while they can't be read or don't fit each other, the last good ones stay.
type Credentials struct {
	caFile, certFile, keyFile string
	log                       *zap.Logger

	mu      sync.Mutex
	state   []fileState
	loaded  *material
	failure string
}

// material is one consistent set of credentials.
type material struct {
	roots *x509.CertPool
	cert  tls.Certificate
}

// fileState is what tells a changed file from an unchanged one.
type fileState struct {
	modified time.Time
	size     int64
}

// NewCredentials reads the files for the first time.
func NewCredentials(caFile, certFile, keyFile string, log *zap.Logger) (*Credentials, error) {
	c := &Credentials{caFile: caFile, certFile: certFile, keyFile: keyFile, log: log}
	state, m, err := c.read()
	if err != nil {
		return nil, err
	}
	c.state, c.loaded = state, m
	return c, nil
}

// current gives the credentials as the files have them now. The pointer is a new one after a change.
func (c *Credentials) current() *material {
	c.mu.Lock()
	defer c.mu.Unlock()
	state, err := c.stat()
	if err == nil && sameFiles(state, c.state) {
		c.failure = ""
		return c.loaded
	}
	state, m, err := c.read()
	if err != nil {
		// Said once for each failure, since this runs at every poll.
		if err.Error() != c.failure {
			c.failure = err.Error()
			c.log.Error("changed certificates can't be used, the last ones stay", zap.Error(err))
		}
		return c.loaded
	}
	c.log.Info("certificates were read again", zap.String("certFile", c.certFile), zap.String("caFile", c.caFile))
	c.state, c.loaded, c.failure = state, m, ""
	return m
}

func sameFiles(a, b []fileState) bool {
	for i := range a {
		if !a[i].modified.Equal(b[i].modified) || a[i].size != b[i].size {
			return false
		}
	}
	return true
}

func (c *Credentials) stat() ([]fileState, error) {
	var out []fileState
	for _, f := range []string{c.caFile, c.certFile, c.keyFile} {
		info, err := os.Stat(f)
		if err != nil {
			return nil, err
		}
		out = append(out, fileState{info.ModTime(), info.Size()})
	}
	return out, nil
}

// read looks at the files' state first, so that a change while they are read is seen the next time.
func (c *Credentials) read() ([]fileState, *material, error) {
	state, err := c.stat()
	if err != nil {
		return nil, nil, readable(err)
	}
	ca, err := os.ReadFile(c.caFile)
	if err != nil {
		return nil, nil, readable(err)
	}
	m := &material{roots: x509.NewCertPool()}
	if !m.roots.AppendCertsFromPEM(ca) {
		return nil, nil, fmt.Errorf("%s: no PEM certificate in it", c.caFile)
	}
	m.cert, err = tls.LoadX509KeyPair(c.certFile, c.keyFile)
	if err != nil {
		return nil, nil, fmt.Errorf("reading %s and its key %s: %w", c.certFile, c.keyFile, err)
	}
	return state, m, nil
}

func readable(err error) error {
	if errors.Is(err, fs.ErrPermission) {
		return fmt.Errorf("%w (xds-server must be able to read it)", err)
	}
	return err
}

// tlsConfig is for connections to any server: they name xds-server's own SNI, and verify the certificate for the one
// name that every kube-apiserver has.
func (m *material) tlsConfig() *tls.Config {
	return &tls.Config{
		MinVersion:   tls.VersionTLS12,
		Certificates: []tls.Certificate{m.cert},
		ServerName:   sni,
		RootCAs:      m.roots,
		// Go verifies a certificate for the name that it sends as SNI. Here they differ, so its check is off and
		// VerifyConnection makes the same one for the other name. It runs on resumed connections too.
		InsecureSkipVerify: true, //nolint:gosec // see above; TestOnlyAKubeAPIServerOfThisClusterIsBelieved
		VerifyConnection:   m.verify,
	}
}

func (m *material) verify(cs tls.ConnectionState) error {
	if len(cs.PeerCertificates) == 0 {
		return errors.New("the server showed no certificate")
	}
	intermediates := x509.NewCertPool()
	for _, c := range cs.PeerCertificates[1:] {
		intermediates.AddCert(c)
	}
	_, err := cs.PeerCertificates[0].Verify(x509.VerifyOptions{
		Roots:         m.roots,
		Intermediates: intermediates,
		DNSName:       serverName,
		KeyUsages:     []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	})
	if err != nil {
		return fmt.Errorf("verifying the server's certificate: %w", err)
	}
	return nil
}
