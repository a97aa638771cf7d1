package routing

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"xds-server/test/e2e/suite"
	"xds-server/test/lab"
)

// raw sends requests whose target is written as it is, where a client library would tidy it up, from an address of its
// own.
type raw struct {
	*suite.S
	lab        *lab.Lab
	credential lab.Credential
	from       net.IP
}

// newRaw is a raw client at an address of the lab's network that nobody else has.
func newRaw(s *suite.S, w world, c lab.Credential) raw {
	from := net.ParseIP(w.old.IP).To4()
	from[3] = 77
	return raw{s, w.Lab, c, from}
}

// ask makes a GET request on a connection of its own. A connection that ends without an answer is status 0.
func (r raw) ask(p lab.Protocol, address, path string, fields ...field) lab.Answer {
	r.Helper()
	config := r.lab.TLS(r.credential)
	config.NextProtos = []string{map[lab.Protocol]string{lab.HTTP1: "http/1.1", lab.HTTP2: "h2"}[p]}
	ctx, cancel := context.WithTimeout(r.Ctx, 10*time.Second)
	defer cancel()
	dialer := tls.Dialer{NetDialer: &net.Dialer{LocalAddr: &net.TCPAddr{IP: r.from}}, Config: config}
	conn, err := dialer.DialContext(ctx, "tcp", address)
	if err != nil {
		r.Fatalf("connecting to %s: %v", address, err)
	}
	defer conn.Close()                                 //nolint:errcheck // it was read to its end
	conn.SetDeadline(time.Now().Add(10 * time.Second)) //nolint:errcheck // then the test waits longer
	r.Count(1)
	if r.credential.Token != "" {
		fields = append([]field{{"authorization", "Bearer " + r.credential.Token}}, fields...)
	}
	if p == lab.HTTP1 {
		return r.http1(conn, path, fields)
	}
	return r.http2(conn, path, fields)
}

func (r raw) http1(conn net.Conn, path string, fields []field) (a lab.Answer) {
	r.Helper()
	if _, err := io.WriteString(conn, "GET "+path+" HTTP/1.1\r\nHost: kubernetes.default.svc\r\n"+lines(fields)+"\r\n"); err != nil {
		return a
	}
	w, err := http.ReadResponse(bufio.NewReader(conn), &http.Request{Method: http.MethodGet})
	if err != nil {
		return a
	}
	body, err := io.ReadAll(w.Body)
	if err != nil {
		r.Fatalf("reading the answer to %q: %v", path, err)
	}
	return lab.Answer{Status: w.StatusCode, Header: w.Header, Body: body}
}

func (r raw) http2(conn net.Conn, path string, fields []field) (a lab.Answer) {
	r.Helper()
	request := append([]field{
		{":method", "GET"}, {":scheme", "https"}, {":authority", "kubernetes.default.svc"}, {":path", path},
	}, fields...)
	var out bytes.Buffer
	out.WriteString(http2.ClientPreface)
	framer := http2.NewFramer(&out, conn)
	for _, err := range []error{
		framer.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 1 << 24}),
		framer.WriteWindowUpdate(0, 1<<24),
	} {
		if err != nil {
			r.Fatal(err)
		}
	}
	// A block that is larger than a frame goes on in further ones.
	block := block(request)
	for first := true; first || len(block) > 0; first = false {
		n := min(len(block), 16384)
		var err error
		if first {
			err = framer.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: block[:n], EndHeaders: n == len(block), EndStream: true})
		} else {
			err = framer.WriteContinuation(1, n == len(block), block[:n])
		}
		if err != nil {
			r.Fatal(err)
		}
		block = block[n:]
	}
	if _, err := conn.Write(out.Bytes()); err != nil {
		return a
	}
	framer.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
	a.Header = http.Header{}
	for {
		f, err := framer.ReadFrame()
		if err != nil {
			return a
		}
		switch f := f.(type) {
		case *http2.MetaHeadersFrame:
			a.Status, _ = strconv.Atoi(f.PseudoValue("status"))
			for _, h := range f.RegularFields() {
				a.Header.Add(h.Name, h.Value)
			}
			if f.StreamEnded() {
				return a
			}
		case *http2.DataFrame:
			a.Body = append(a.Body, f.Data()...)
			if f.StreamEnded() {
				return a
			}
		case *http2.RSTStreamFrame:
			return a
		}
	}
}

// headerFaults says in which way headers that went through a front differ from those that did not: none may be there
// twice, be missing, or come from Envoy, but for those named.
func headerFaults(direct, front http.Header, but ...string) []string {
	var faults []string
	ours := map[string]bool{}
	for _, name := range but {
		ours[name] = true
	}
	for name, values := range front {
		switch {
		case strings.HasPrefix(strings.ToLower(name), "x-envoy-"):
			faults = append(faults, fmt.Sprintf("%s: %q", name, values))
		case ours[name]:
			if len(values) != 1 {
				faults = append(faults, fmt.Sprintf("%s: %q, want one", name, values))
			}
		case len(direct[name]) != len(values):
			faults = append(faults, fmt.Sprintf("%s: %q, directly %q", name, values, direct[name]))
		case volatile[name]:
		case fmt.Sprint(direct[name]) != fmt.Sprint(values):
			faults = append(faults, fmt.Sprintf("%s: %q, directly %q", name, values, direct[name]))
		}
	}
	for name, values := range direct {
		if _, ok := front[name]; !ok && !ours[name] {
			faults = append(faults, fmt.Sprintf("%s is missing, directly %q", name, values))
		}
	}
	return faults
}

// volatile headers have another value for each request.
var volatile = map[string]bool{"Date": true, "Last-Modified": true, "Audit-Id": true, "Content-Length": true}
