package lab

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"net/http"
	"strings"
)

// A Credential is what a client shows of itself.
type Credential struct {
	Cert   *Pair
	Token  string
	Header http.Header // sent besides, for example Impersonate-User
}

// Anonymous shows nothing.
var Anonymous Credential

// Certificate is the credential of a certificate and its key.
func Certificate(p *Pair) Credential { return Credential{Cert: p} }

// Protocol is the HTTP version that a client speaks, and no other.
type Protocol int

// The versions of HTTP that a kube-apiserver speaks.
const (
	HTTP1 Protocol = iota + 1
	HTTP2
)

// Client is an HTTP client with a credential, for every front and server of
// the lab. It trusts the cluster's authority and uses no proxy.
func (l *Lab) Client(c Credential, p Protocol) *http.Client {
	config := l.TLS(c)
	protocols := new(http.Protocols)
	protocols.SetHTTP1(p == HTTP1)
	protocols.SetHTTP2(p == HTTP2)
	return &http.Client{
		Transport: &credentialTransport{c, &http.Transport{
			TLSClientConfig:     config,
			Protocols:           protocols,
			DisableCompression:  true, // show bytes as they are
			MaxIdleConnsPerHost: 100,
		}},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

// TLS is the client side of TLS with a credential, for what does not go through
// Client: websockets, SPDY, raw connections.
func (l *Lab) TLS(c Credential) *tls.Config {
	config := &tls.Config{RootCAs: pool(l.PKI.CA)}
	if c.Cert != nil {
		// Show it whatever authorities the server names: refusals are tested too.
		config.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
			return c.Cert.TLS(), nil
		}
	}
	return config
}

// Set adds what a credential puts into headers.
func (c Credential) Set(h http.Header) {
	if c.Token != "" && h.Get("Authorization") == "" {
		h.Set("Authorization", "Bearer "+c.Token)
	}
	for k, v := range c.Header {
		h[k] = append(h[k], v...)
	}
}

type credentialTransport struct {
	credential Credential
	*http.Transport
}

func (t *credentialTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	t.credential.Set(r.Header)
	return t.Transport.RoundTrip(r)
}

// Answer is a response that was read to its end.
type Answer struct {
	Status  int
	Header  http.Header
	Trailer http.Header
	Proto   string
	TLS     *tls.ConnectionState
	Body    []byte
}

// Call makes one request and reads the whole answer.
func Call(ctx context.Context, c *http.Client, method, url, body string, header http.Header) (*Answer, error) {
	r, err := http.NewRequestWithContext(ctx, method, url, strings.NewReader(body))
	if err != nil {
		return nil, err
	}
	for k, v := range header {
		r.Header[k] = v
	}
	if body != "" && r.Header.Get("Content-Type") == "" {
		r.Header.Set("Content-Type", "application/json")
	}
	w, err := c.Do(r)
	if err != nil {
		return nil, err
	}
	defer w.Body.Close()
	b, err := io.ReadAll(w.Body)
	if err != nil {
		return nil, fmt.Errorf("reading the answer to %s %s: %w", method, url, err)
	}
	return &Answer{w.StatusCode, w.Header, w.Trailer, w.Proto, w.TLS, b}, nil
}

// want turns any other status into an error.
func (a *Answer) want(status int, err error) error {
	if err == nil && a.Status != status {
		err = fmt.Errorf("answered %d: %s", a.Status, a.Body)
	}
	return err
}

// NewClientCertificate is a credential of the cluster's authority.
func (l *Lab) NewClientCertificate(user string, groups ...string) (Credential, error) {
	p, err := l.PKI.CA.IssueClient(user, groups...)
	return Certificate(p), err
}

// NewCertificate is a credential that the cluster's authority issued from a
// template.
func (l *Lab) NewCertificate(template *x509.Certificate) (Credential, error) {
	p, err := l.PKI.CA.Issue(template)
	return Certificate(p), err
}
