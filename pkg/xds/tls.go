package xds

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"time"

	"go.uber.org/zap"
)

// TLSFiles are read again whenever one of them has changed, also when it was overwritten in place.
type TLSFiles struct {
	Cert string
	Key  string
	// ClientCA is the bundle of authorities that clients' certificates must come from.
	ClientCA string
}

func (f TLSFiles) all() [3]string { return [3]string{f.Cert, f.Key, f.ClientCA} }

// tlsKeys holds the last good content of the files.
type tlsKeys struct {
	files   TLSFiles
	allowed []string
	log     *zap.Logger

	mu      sync.Mutex
	good    *tls.Config
	stamps  [3]stamp // of the files that good was read from
	failure string   // of the last attempt, so that it is logged once
}

// stamp tells whether a file has changed.
type stamp struct {
	info os.FileInfo
	size int64
	time time.Time
}

func newTLSKeys(files TLSFiles, allowed []string, log *zap.Logger) (*tlsKeys, error) {
	if len(allowed) == 0 {
		return nil, errors.New("no client name is allowed, so that nobody could connect")
	}
	k := &tlsKeys{files: files, allowed: allowed, log: log}
	stamps, err := k.stat()
	if err != nil {
		return nil, err
	}
	if k.good, err = k.load(); err != nil {
		return nil, err
	}
	k.stamps = stamps
	return k, nil
}

// config is what a listener is given. The files are looked at on every handshake.
func (k *tlsKeys) config() *tls.Config {
	return &tls.Config{
		MinVersion:         tls.VersionTLS12,
		NextProtos:         []string{"h2"},
		GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) { return k.current(), nil },
	}
}

// current is the content of the files, or their last good content.
func (k *tlsKeys) current() *tls.Config {
	k.mu.Lock()
	defer k.mu.Unlock()
	stamps, err := k.stat()
	if err == nil && same(stamps, k.stamps) {
		k.failure = ""
		return k.good
	}
	var next *tls.Config
	if err == nil {
		next, err = k.load()
	}
	if err != nil {
		if k.failure != err.Error() {
			k.failure = err.Error()
			k.log.Error("TLS files cannot be used, the last good ones stay in use", zap.Error(err))
		}
		return k.good
	}
	k.good, k.stamps, k.failure = next, stamps, ""
	k.log.Info("TLS files read again")
	return k.good
}

func (k *tlsKeys) stat() ([3]stamp, error) {
	var out [3]stamp
	for i, file := range k.files.all() {
		if file == "" {
			return out, fmt.Errorf("no %s file is given", [3]string{"certificate", "key", "client CA"}[i])
		}
		info, err := os.Stat(file)
		if err != nil {
			return out, err
		}
		out[i] = stamp{info: info, size: info.Size(), time: info.ModTime()}
	}
	return out, nil
}

func same(a, b [3]stamp) bool {
	for i := range a {
		if !os.SameFile(a[i].info, b[i].info) || a[i].size != b[i].size || !a[i].time.Equal(b[i].time) {
			return false
		}
	}
	return true
}

func (k *tlsKeys) load() (*tls.Config, error) {
	cert, err := loadPair(k.files.Cert, k.files.Key)
	if err != nil {
		return nil, err
	}
	bundle, err := os.ReadFile(k.files.ClientCA)
	if err != nil {
		return nil, fmt.Errorf("client CA: %w", err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(bundle) {
		return nil, fmt.Errorf("client CA %s: no certificate in it", k.files.ClientCA)
	}
	return &tls.Config{
		MinVersion:   tls.VersionTLS12,
		NextProtos:   []string{"h2"},
		Certificates: []tls.Certificate{cert},
		ClientAuth:   tls.RequireAndVerifyClientCert,
		ClientCAs:    pool,
		// A resumed session would be one with yesterday's authorities.
		SessionTicketsDisabled: true,
		VerifyConnection:       k.verify,
	}, nil
}

func loadPair(certFile, keyFile string) (tls.Certificate, error) {
	certPEM, err := os.ReadFile(certFile)
	if err != nil {
		return tls.Certificate{}, fmt.Errorf("certificate: %w", err)
	}
	keyPEM, err := os.ReadFile(keyFile)
	if err != nil {
		return tls.Certificate{}, fmt.Errorf("key: %w", err)
	}
	cert, err := tls.X509KeyPair(certPEM, keyPEM)
	if err != nil {
		return tls.Certificate{}, fmt.Errorf("certificate %s with key %s: %w", certFile, keyFile, err)
	}
	if now := time.Now(); now.After(cert.Leaf.NotAfter) {
		return tls.Certificate{}, fmt.Errorf("certificate %s: expired at %s", certFile, cert.Leaf.NotAfter.UTC().Format(time.RFC3339))
	}
	return cert, nil
}

// verify lets in only clients whose certificate, which is verified by now, has an allowed common name: what an apiserver
// asks of a front-proxy certificate.
func (k *tlsKeys) verify(state tls.ConnectionState) error {
	leaf := state.PeerCertificates[0]
	name := leaf.Subject.CommonName
	if name != "" && slices.Contains(k.allowed, name) {
		return nil
	}
	k.log.Warn("client refused: its certificate's common name is not allowed", zap.String("name", name))
	return fmt.Errorf("the client certificate's common name is not allowed: %q", name)
}
