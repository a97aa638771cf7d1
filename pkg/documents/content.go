package documents

import (
	"bytes"
	"compress/gzip"
	"crypto/sha512"
	"fmt"
	"net/http"
	"strconv"
	"sync"
)

// gzipThreshold is the size above which a kube-apiserver compresses.
const gzipThreshold = 128 << 10

// content is the body of a document in one media type. Its gzip form is made once, when it is first asked for.
type content struct {
	mediaType string
	body      []byte
	// hash is the ETag of the body as it is, without its quotes.
	hash   string
	zipped func() []byte
	// convertible says that JSON may be converted to protobuf.
	convertible func() bool
}

// newContent takes the body over: nobody changes it from here on.
func newContent(mediaType string, body []byte) *content {
	return &content{
		mediaType:   mediaType,
		body:        body,
		hash:        fmt.Sprintf("%X", sha512.Sum512(body)),
		zipped:      sync.OnceValue(func() []byte { return zip(body) }),
		convertible: sync.OnceValue(func() bool { return convertible(body) }),
	}
}

// serve answers with the content: 200, or 304 if the client has it already. What else belongs to the headers
// (Cache-Control, Vary: Accept) the caller has set before; for a HEAD, Set.Find's handlers leave every body out.
func (c *content) serve(w http.ResponseWriter, req *http.Request) {
	header := w.Header()
	tag := c.hash
	compressed := len(c.body) > gzipThreshold && acceptsGzip(req)
	if compressed {
		tag = zippedHash(c.hash)
		header.Add("Vary", "Accept-Encoding")
	}
	header.Set("ETag", strconv.Quote(tag))
	if noneMatch(req.Header.Values("If-None-Match"), c.hash) {
		w.WriteHeader(http.StatusNotModified)
		return
	}
	header.Set("Content-Type", c.mediaType)
	body := c.body
	if compressed {
		header.Set("Content-Encoding", "gzip")
		body = c.zipped()
	}
	w.WriteHeader(http.StatusOK)
	_, _ = w.Write(body) // a client that has gone away
}

// zippedHash is the ETag of the gzip form: a strong ETag is of the bytes that are sent.
func zippedHash(hash string) string { return hash + "-gzip" }

func zip(body []byte) []byte {
	var out bytes.Buffer
	// The speed is a kube-apiserver's own choice. Nothing fails: the level is known and a buffer takes everything.
	w, _ := gzip.NewWriterLevel(&out, gzip.BestSpeed)
	_, _ = w.Write(body)
	_ = w.Close()
	return out.Bytes()
}
