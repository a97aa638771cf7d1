package discovery

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"mime"
	"net/http"
	"time"
)

// answer is a whole document as a server gave it.
type answer struct {
	// unchanged says that it is still the one whose ETag was shown.
	unchanged bool
	etag      string
	body      []byte
}

// fetch reads one document as JSON. An error that is a failure is the server's answer, any other one the lack of it.
func (c *connection) fetch(ctx context.Context, path, etag string, limit int64, timeout time.Duration) (answer, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	header := http.Header{"Accept": {"application/json"}}
	if etag != "" {
		header.Set("If-None-Match", etag)
	}
	resp, err := c.get(ctx, path, header)
	if err != nil {
		return answer{}, err
	}
	defer func() { _ = resp.Body.Close() }()
	switch {
	case resp.StatusCode == http.StatusOK:
	case resp.StatusCode == http.StatusNotModified && etag != "":
		return answer{unchanged: true, etag: etag}, nil
	case resp.StatusCode == http.StatusUnauthorized || resp.StatusCode == http.StatusForbidden:
		return answer{}, refused(path, resp.StatusCode)
	default:
		return answer{}, invalid(fmt.Errorf("reading %s: the server answered %d", path, resp.StatusCode))
	}
	// kube-apiserver names no type for the index of OpenAPI v3, and what it then guesses is text.
	if t, _, err := mime.ParseMediaType(resp.Header.Get("Content-Type")); err != nil || t != "application/json" && t != "text/plain" {
		return answer{}, invalid(fmt.Errorf("reading %s: the server answered in %.60q", path, resp.Header.Get("Content-Type")))
	}
	body, err := readBody(resp, limit)
	if err != nil {
		return answer{}, fmt.Errorf("reading %s: %w", path, err)
	}
	out := answer{body: body}
	if e := resp.Header.Get("ETag"); validETag(e) {
		out.etag = e
	}
	return out, nil
}

// readBody reads at most limit bytes, and keeps no more memory than they need where the server says how many there are.
func readBody(resp *http.Response, limit int64) ([]byte, error) {
	if resp.ContentLength > limit {
		return nil, &failure{resultInvalid, fmt.Errorf("%w: it has %d bytes", errTooLarge, resp.ContentLength)}
	}
	var b bytes.Buffer
	if resp.ContentLength > 0 {
		// What it says is not yet what it sends: a buffer grows with what came.
		b.Grow(int(min(resp.ContentLength, 1<<20)) + bytes.MinRead)
	}
	n, err := b.ReadFrom(io.LimitReader(resp.Body, limit+1))
	switch {
	case err != nil:
		return nil, err
	case n > limit:
		return nil, &failure{resultInvalid, fmt.Errorf("%w: it has more than %d bytes", errTooLarge, limit)}
	}
	return bytes.Clone(b.Bytes()), nil
}

// validETag is one that can be shown again in If-None-Match, and no longer than any real one.
func validETag(etag string) bool {
	opaque := etag
	if len(opaque) > 2 && opaque[:2] == "W/" {
		opaque = opaque[2:]
	}
	if len(etag) > 256 || len(opaque) < 2 || opaque[0] != '"' || opaque[len(opaque)-1] != '"' {
		return false
	}
	for _, c := range []byte(opaque[1 : len(opaque)-1]) {
		if c <= ' ' || c == '"' || c > '~' {
			return false
		}
	}
	return true
}
