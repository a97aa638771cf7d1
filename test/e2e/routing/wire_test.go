package routing

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"errors"
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

// An exchange writes requests byte by byte, since no client library would write what is tried here.
type exchange struct {
	s             *suite.S
	address       string
	tls           *tls.Config
	agent         string
	authorization []field
}

// one makes a request with further header fields.
func (x exchange) one(p lab.Protocol, path string, more []field) (verdict, error) {
	if p == lab.HTTP2 {
		return x.http2(append(x.pseudo(path), more...), nil)
	}
	answers, err := x.http1(x.text(path, lines(more)))
	if err != nil {
		return verdict{}, err
	}
	if len(answers) == 0 {
		return verdict{}, errors.New("no answer")
	}
	return answers[0], nil
}

func (x exchange) dial(protocol string) (*tls.Conn, error) {
	config := x.tls.Clone()
	config.NextProtos = []string{protocol}
	ctx, cancel := context.WithTimeout(x.s.Ctx, 10*time.Second)
	defer cancel()
	conn, err := (&tls.Dialer{NetDialer: &net.Dialer{}, Config: config}).DialContext(ctx, "tcp", x.address)
	if err != nil {
		return nil, err
	}
	// No answer at all within this time is no answer.
	if err := conn.SetDeadline(time.Now().Add(10 * time.Second)); err != nil {
		return nil, err
	}
	x.s.Count(1)
	return conn.(*tls.Conn), nil
}

func method(path string) (string, string) {
	if path == whoamiPath {
		return http.MethodPost, whoamiBody
	}
	return http.MethodGet, ""
}

func lines(fields []field) string {
	var b strings.Builder
	for _, f := range fields {
		fmt.Fprintf(&b, "%s: %s\r\n", f.name, f.value)
	}
	return b.String()
}

// text is a request in HTTP/1.1 with lines of its own between the usual ones.
func (x exchange) text(path, more string) string {
	verb, body := method(path)
	return x.head(verb, path, more) + "Content-Length: " + strconv.Itoa(len(body)) + "\r\n\r\n" + body
}

// head is a request without its length and its end.
func (x exchange) head(verb, path, more string) string {
	return verb + " " + path + " HTTP/1.1\r\nHost: kubernetes.default.svc\r\nUser-Agent: " + x.agent + "\r\n" + lines(x.authorization) +
		more + "Content-Type: application/json\r\n"
}

// http1 sends bytes, and then a last, plain request; it gives every answer until the connection ends.
func (x exchange) http1(request string) ([]verdict, error) {
	conn, err := x.dial("http/1.1")
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	if _, err := io.WriteString(conn, request); err != nil {
		return nil, err
	}
	r := bufio.NewReader(conn)
	var answers []verdict
	for {
		// The method decides whether an answer has a body; here it always has.
		answer, err := http.ReadResponse(r, &http.Request{Method: http.MethodPost})
		if err != nil {
			if len(answers) > 0 || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
				return answers, nil
			}
			return nil, err
		}
		body, err := io.ReadAll(answer.Body)
		if err != nil {
			return nil, err
		}
		answers = append(answers, judge(answer.StatusCode, body))
		if answer.Close {
			return answers, nil
		}
		if len(answers) == 1 {
			// Whatever was smuggled into a connection further on is answered before this, or instead of it.
			if _, err := io.WriteString(conn, x.text("/version", "Connection: close\r\n")); err != nil {
				return answers, nil
			}
		}
	}
}

func (x exchange) pseudo(path string) []field {
	verb, body := method(path)
	fields := []field{
		{":method", verb}, {":scheme", "https"}, {":authority", "kubernetes.default.svc"}, {":path", path},
		{"user-agent", x.agent}, {"content-type", "application/json"}, {"content-length", strconv.Itoa(len(body))},
	}
	return append(fields, x.authorization...)
}

// http2 sends one request as HTTP/2 frames, with trailers if there are any. Names are put into lower case, which is what
// HTTP/2 demands; see shouted.
func (x exchange) http2(fields, trailers []field) (verdict, error) {
	conn, err := x.dial("h2")
	if err != nil {
		return verdict{}, err
	}
	defer conn.Close()
	body := ""
	for _, f := range fields {
		if f.name == ":path" && strings.HasPrefix(f.value, whoamiPath) {
			body = whoamiBody
		}
	}
	var out bytes.Buffer
	out.WriteString(http2.ClientPreface)
	framer := http2.NewFramer(&out, conn)
	if err := errors.Join(framer.WriteSettings(),
		framer.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: block(fields), EndHeaders: true}),
		framer.WriteData(1, trailers == nil, []byte(body))); err != nil {
		return verdict{}, err
	}
	if trailers != nil {
		if err := framer.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: block(trailers), EndHeaders: true, EndStream: true}); err != nil {
			return verdict{}, err
		}
	}
	if _, err := conn.Write(out.Bytes()); err != nil {
		return verdict{}, err
	}
	return answerHTTP2(framer)
}

// shouted marks a name that is to keep its capitals.
const shouted = "\x01"

func block(fields []field) []byte {
	var b bytes.Buffer
	e := hpack.NewEncoder(&b)
	for _, f := range fields {
		name, ok := strings.CutPrefix(f.name, shouted)
		if !ok {
			name = strings.ToLower(name)
		}
		_ = e.WriteField(hpack.HeaderField{Name: name, Value: f.value}) // into memory
	}
	return b.Bytes()
}

// answerHTTP2 reads the answer on the first stream.
func answerHTTP2(framer *http2.Framer) (verdict, error) {
	framer.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
	var body []byte
	status := 0
	for {
		f, err := framer.ReadFrame()
		if err != nil {
			return verdict{}, err
		}
		switch f := f.(type) {
		case *http2.MetaHeadersFrame:
			if status, err = strconv.Atoi(f.PseudoValue("status")); err != nil {
				return verdict{}, err
			}
		case *http2.DataFrame:
			body = append(body, f.Data()...)
		case *http2.RSTStreamFrame:
			if status == 0 {
				return verdict{}, fmt.Errorf("stream reset: %v", f.ErrCode)
			}
		case *http2.GoAwayFrame:
			if f.ErrCode != http2.ErrCodeNo {
				return verdict{}, fmt.Errorf("connection ended: %v", f.ErrCode)
			}
		}
		if h := f.Header(); h.StreamID == 1 && status >= 200 && (h.Type == http2.FrameData || h.Type == http2.FrameHeaders) && h.Flags.Has(http2.FlagDataEndStream) {
			return judge(status, body), nil
		}
	}
}
