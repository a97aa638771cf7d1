package config

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"
)

// ReadCAFile reads a bundle of CA certificates. It is an error if the file can't be read, holds a certificate that can't
// be parsed or none, or holds only certificates that are expired.
func ReadCAFile(path string, now time.Time) ([]*x509.Certificate, error) {
	certs, err := readCertificates(path)
	if err != nil {
		return nil, err
	}
	if slices.ContainsFunc(certs, func(c *x509.Certificate) bool { return !now.After(c.NotAfter) }) {
		return certs, nil
	}
	return nil, fmt.Errorf("%s: the CA certificate %q expired on %s", path, certs[0].Subject, certs[0].NotAfter.Format(time.DateTime))
}

// ReadKeyPair reads a certificate and its key. It is an error if one can't be read, they don't belong together, or the
// certificate is not valid now.
func ReadKeyPair(certFile, keyFile string, now time.Time) (*x509.Certificate, error) {
	certs, err := readCertificates(certFile)
	if err != nil {
		return nil, err
	}
	key, err := os.ReadFile(keyFile)
	if err != nil {
		return nil, err
	}
	if block, _ := pem.Decode(key); block == nil {
		return nil, fmt.Errorf("%s: not a PEM file", keyFile)
	}
	if _, err := tls.X509KeyPair(encode(certs), key); err != nil {
		return nil, fmt.Errorf("%s does not fit %s: %w", keyFile, certFile, err)
	}
	leaf := certs[0]
	switch {
	case now.After(leaf.NotAfter):
		return nil, fmt.Errorf("%s: the certificate %q expired on %s", certFile, leaf.Subject, leaf.NotAfter.Format(time.DateTime))
	case now.Before(leaf.NotBefore):
		return nil, fmt.Errorf("%s: the certificate %q is not valid before %s", certFile, leaf.Subject, leaf.NotBefore.Format(time.DateTime))
	}
	return leaf, nil
}

// DistinctCAs is an error if the front-proxy CA and the client CA are one, whatever their files look like: anyone
// with a client certificate could then name himself another user, or the front proxy's certificate be taken for a user.
// Public keys are compared, since a CA that was reissued is still the same.
func DistinctCAs(frontProxyCAFile, clientCAFile string) error {
	frontProxy, err := readCertificates(frontProxyCAFile)
	if err != nil {
		return err
	}
	client, err := readCertificates(clientCAFile)
	if err != nil {
		return err
	}
	for _, f := range frontProxy {
		for _, c := range client {
			if bytes.Equal(f.RawSubjectPublicKeyInfo, c.RawSubjectPublicKeyInfo) {
				return fmt.Errorf("the front-proxy CA (%s) and the client CA (%s) are the same CA (%q); give the front proxy a CA of its own",
					frontProxyCAFile, clientCAFile, f.Subject)
			}
		}
	}
	return nil
}

func readCertificates(path string) ([]*x509.Certificate, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var certs []*x509.Certificate
	for {
		var block *pem.Block
		if block, data = pem.Decode(data); block == nil {
			break
		}
		if block.Type != "CERTIFICATE" {
			continue // a key in the same file, as some tools write it
		}
		cert, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil, fmt.Errorf("%s: certificate %d: %w", path, len(certs)+1, err)
		}
		certs = append(certs, cert)
	}
	if len(certs) == 0 {
		return nil, fmt.Errorf("%s: no PEM certificate in it", path)
	}
	return certs, nil
}

func encode(certs []*x509.Certificate) []byte {
	var b bytes.Buffer
	for _, c := range certs {
		b.Write(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: c.Raw}))
	}
	return b.Bytes()
}

// ServingName is what the certificate of an xds-server that listens to other nodes' Envoys must be valid for.
const ServingName = "xds-server.kube-system.svc"

// checkOwnCertificate refuses what would make xds-server more than a reader of discovery.
func checkOwnCertificate(c Config, leaf *x509.Certificate) error {
	if len(leaf.Subject.Organization) > 0 {
		return fmt.Errorf("tlsCertFile: %s is of group %q; give xds-server a certificate of its own, with a name and no group", c.TLSCertFile, leaf.Subject.Organization[0])
	}
	if !hasUsage(leaf, x509.ExtKeyUsageClientAuth) {
		return fmt.Errorf("tlsCertFile: %s is no client certificate; issue it with the extended key usage clientAuth", c.TLSCertFile)
	}
	if c.Listen != "" && !hasUsage(leaf, x509.ExtKeyUsageServerAuth) {
		return fmt.Errorf("tlsCertFile: %s is no server certificate, which listen needs; issue it with the extended key usage serverAuth too", c.TLSCertFile)
	}
	if c.ListenClientCAFile == "" {
		return nil
	}
	frontProxy, err := readCertificates(c.ListenClientCAFile)
	if err != nil {
		return fmt.Errorf("listenClientCAFile: %w", err)
	}
	for _, ca := range frontProxy {
		if leaf.CheckSignatureFrom(ca) == nil {
			return fmt.Errorf("tlsCertFile: %s was issued by listenClientCAFile %s, the front-proxy CA, so xds-server could act as any user; issue it from another CA",
				c.TLSCertFile, c.ListenClientCAFile)
		}
	}
	if err := leaf.VerifyHostname(ServingName); c.Listen != "" && err != nil {
		return fmt.Errorf("tlsCertFile: other nodes' Envoys know an xds-server that listens by the name %s, which %s is not valid for: %w", ServingName, c.TLSCertFile, err)
	}
	return nil
}

func hasUsage(c *x509.Certificate, usage x509.ExtKeyUsage) bool {
	if len(c.ExtKeyUsage) == 0 && len(c.UnknownExtKeyUsage) == 0 {
		return true
	}
	return slices.Contains(c.ExtKeyUsage, usage) || slices.Contains(c.ExtKeyUsage, x509.ExtKeyUsageAny)
}

// checkSocketPath refuses a path on which no socket can be made.
func checkSocketPath(path string) error {
	// A socket's address holds 108 bytes: the last is zero, and package xds needs four more while it makes the socket.
	if len(path) > 103 {
		return fmt.Errorf("socket: the path %s is longer than 103 bytes", path)
	}
	dir := filepath.Dir(path)
	info, err := os.Stat(dir)
	switch {
	case errors.Is(err, os.ErrNotExist):
		return fmt.Errorf("socket: the directory %s of %s does not exist; create it, or set socket to another path", dir, path)
	case err != nil:
		return fmt.Errorf("socket: %w", err)
	case !info.IsDir():
		return fmt.Errorf("socket: %s is no directory", dir)
	}
	info, err = os.Lstat(path)
	switch {
	case errors.Is(err, os.ErrNotExist):
		return nil
	case err != nil:
		return fmt.Errorf("socket: %w", err)
	case info.Mode().Type() != os.ModeSocket:
		return fmt.Errorf("socket: %s exists and is no socket; remove it, or set socket to another path", path)
	}
	return nil
}
