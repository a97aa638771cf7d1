package lab

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"fmt"
	"net"
	"net/http"
	"path/filepath"
)

func (l *Lab) setUpEtcd() error {
	ip := l.address(127, 0, 2)
	dir := filepath.Join(l.Dir, "etcd")
	pki := filepath.Join(dir, "pki")
	server, err := l.PKI.EtcdCA.Issue(&x509.Certificate{
		Subject:     pkix.Name{CommonName: "etcd"},
		IPAddresses: []net.IP{ip},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	})
	if err != nil {
		return err
	}
	if err := server.Write(pki, "server"); err != nil {
		return err
	}
	if err := l.PKI.EtcdCA.Write(pki, "ca"); err != nil {
		return err
	}
	crt, key, ca := filepath.Join(pki, "server.crt"), filepath.Join(pki, "server.key"), filepath.Join(pki, "ca.crt")
	peer := fmt.Sprintf("https://%s:2380", ip)
	argv := []string{
		Etcd.Path(), "--name=etcd", "--data-dir=" + filepath.Join(dir, "data"), "--log-level=warn",
		"--listen-client-urls=" + l.etcdURL(), "--advertise-client-urls=" + l.etcdURL(),
		"--listen-peer-urls=" + peer, "--initial-advertise-peer-urls=" + peer, "--initial-cluster=etcd=" + peer,
		"--cert-file=" + crt, "--key-file=" + key, "--trusted-ca-file=" + ca, "--client-cert-auth",
		"--peer-cert-file=" + crt, "--peer-key-file=" + key, "--peer-trusted-ca-file=" + ca, "--peer-client-cert-auth",
		// The data dies with the lab, so nothing is gained by waiting for a disk.
		"--unsafe-no-fsync",
	}

	client := &http.Client{Transport: &http.Transport{
		DisableKeepAlives: true,
		TLSClientConfig: &tls.Config{
			RootCAs:      pool(l.PKI.EtcdCA),
			Certificates: []tls.Certificate{*server.TLS()},
		},
	}}
	l.Etcd = l.add(&Process{
		Name: "etcd",
		Log:  filepath.Join(dir, "etcd.log"),
		argv: func() []string { return argv },
		ready: func(ctx context.Context) error {
			a, err := Call(ctx, client, http.MethodGet, l.etcdURL()+"/health", "", nil)
			return a.want(http.StatusOK, err)
		},
	})
	return nil
}

func (l *Lab) etcdURL() string { return fmt.Sprintf("https://%s:2379", l.address(127, 0, 2)) }

func pool(ca *Pair) *x509.CertPool {
	p := x509.NewCertPool()
	p.AddCert(ca.Cert)
	return p
}
