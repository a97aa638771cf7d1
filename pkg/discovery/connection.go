package discovery

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"time"
)

// connection leads to one server. Requests may be made at the same time, but only between the calls that make the
// connection or end it.
type connection struct {
	address     string
	timeout     time.Duration
	credentials *Credentials

	used      *material
	transport *http.Transport
}

// readyz asks whether the server is ready: the status tells.
func (c *connection) readyz(ctx context.Context) (status int, body []byte, err error) {
	resp, err := c.get(ctx, "/readyz", nil)
	if err != nil {
		return 0, nil, err
	}
	defer func() { _ = resp.Body.Close() }()
	body, err = io.ReadAll(io.LimitReader(resp.Body, 64<<10)) // to its end, so that the connection can be used again
	if err != nil {
		return 0, nil, fmt.Errorf("reading /readyz: %w", err)
	}
	return resp.StatusCode, body, nil
}

func (c *connection) get(ctx context.Context, path string, header http.Header) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://"+c.address+path, nil)
	if err != nil {
		return nil, fmt.Errorf("making the request for %s: %w", path, err)
	}
	if header != nil {
		req.Header = header
	}
	req.Header.Set("User-Agent", "xds-server")
	// RoundTrip and not http.Client: a redirect is an answer like any other, and is not followed.
	resp, err := c.transport.RoundTrip(req)
	if err != nil {
		return nil, fmt.Errorf("reading %s: %w", path, err)
	}
	return resp, nil
}

// connectWithCurrentFiles makes a new connection if a file changed: the server looks at the client certificate's end
// at every request, so that an old connection does not outlive it.
func (c *connection) connectWithCurrentFiles() {
	m := c.credentials.current()
	if m == c.used && c.transport != nil {
		return
	}
	c.disconnect()
	c.used = m
	protocols := new(http.Protocols)
	protocols.SetHTTP1(true)
	protocols.SetHTTP2(true)
	c.transport = &http.Transport{
		// No proxy: these are the cluster's own machines.
		Proxy:                  nil,
		DialContext:            (&net.Dialer{Timeout: c.timeout}).DialContext,
		TLSClientConfig:        m.tlsConfig(),
		TLSHandshakeTimeout:    c.timeout,
		Protocols:              protocols,
		HTTP2:                  &http.HTTP2Config{SendPingTimeout: c.timeout, PingTimeout: c.timeout},
		MaxResponseHeaderBytes: 64 << 10,
		MaxIdleConnsPerHost:    1,
		IdleConnTimeout:        90 * time.Second,
		// These machines are near, and what is not compressed can't be a bomb.
		DisableCompression: true,
	}
}

func (c *connection) disconnect() {
	if c.transport != nil {
		c.transport.CloseIdleConnections()
		c.transport = nil
	}
}
