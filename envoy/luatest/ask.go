package luatest

import (
	"bufio"
	"context"
	"crypto"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"time"
)

// An Answer to one request.
type Answer struct {
	// Handshake is why there was no TLS connection, the request then having no answer.
	Handshake error
	Status    int
	Body      string
	// Echo is what the server behind Envoy saw, if the request came so far.
	Echo *Echo
}

// Conn is one connection with a client certificate, kept open.
type Conn struct {
	conn net.Conn
	r    *bufio.Reader
}

// Dial presents the chain as it is: bytes that Go's own parser would refuse, too.
func (e *Envoy) Dial(ctx context.Context, chain [][]byte, key crypto.Signer, max uint16) (*Conn, error) {
	raw, err := new(net.Dialer).DialContext(ctx, "unix", e.Socket)
	if err != nil {
		return nil, err
	}
	if deadline, ok := ctx.Deadline(); ok {
		_ = raw.SetDeadline(deadline)
	}
	c := tls.Client(raw, &tls.Config{
		InsecureSkipVerify: true, // the test is about the client's certificate
		MaxVersion:         max,
		GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
			if chain == nil {
				return &tls.Certificate{}, nil
			}
			return &tls.Certificate{Certificate: chain, PrivateKey: key}, nil
		},
	})
	if err := c.HandshakeContext(ctx); err != nil {
		_ = raw.Close()
		return nil, err
	}
	return &Conn{c, bufio.NewReader(c)}, nil
}

// Close ends the connection.
func (c *Conn) Close() { _ = c.conn.Close() }

// Do sends one request. An error before the answer's first byte may be the refusal of the certificate: in TLS 1.3 the
// client has finished its handshake by then.
func (c *Conn) Do(method, path string, headers ...string) (Answer, error) {
	var b strings.Builder
	fmt.Fprintf(&b, "%s %s HTTP/1.1\r\nHost: front\r\n", method, path)
	for _, h := range headers {
		b.WriteString(h + "\r\n")
	}
	b.WriteString("\r\n")
	if _, err := io.WriteString(c.conn, b.String()); err != nil {
		return Answer{Handshake: err}, nil
	}
	if _, err := c.r.Peek(1); err != nil {
		return Answer{Handshake: err}, nil
	}
	res, err := http.ReadResponse(c.r, &http.Request{Method: method})
	if err != nil {
		return Answer{}, fmt.Errorf("reading the answer: %w", err)
	}
	defer func() { _ = res.Body.Close() }()
	body, err := io.ReadAll(res.Body)
	if err != nil {
		return Answer{}, fmt.Errorf("reading the answer's body: %w", err)
	}
	a := Answer{Status: res.StatusCode, Body: string(body)}
	if res.StatusCode == http.StatusOK {
		a.Echo = new(Echo)
		if err := json.Unmarshal(body, a.Echo); err != nil {
			return a, fmt.Errorf("decoding the echo: %w", err)
		}
	}
	return a, nil
}

// Ask connects, sends one request and closes.
func (e *Envoy) Ask(chain [][]byte, key crypto.Signer, headers ...string) (Answer, error) {
	return e.AskOver(0, chain, key, headers...)
}

// AskOver is Ask with at most this version of TLS.
func (e *Envoy) AskOver(version uint16, chain [][]byte, key crypto.Signer, headers ...string) (Answer, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	c, err := e.Dial(ctx, chain, key, version)
	if err != nil {
		if errors.Is(err, context.DeadlineExceeded) {
			return Answer{}, err
		}
		return Answer{Handshake: err}, nil
	}
	defer c.Close()
	return c.Do(http.MethodGet, "/api/v1/pods", headers...)
}
