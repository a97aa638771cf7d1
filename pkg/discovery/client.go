package discovery

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"mime"
	"net"
	"net/http"
	"reflect"
	"time"

	apidiscoveryv2 "k8s.io/api/apidiscovery/v2"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Accept asks for the server's own aggregated document, without what its native peer proxy would merge into it. A
// server before 1.35 ignores the profile (it merges nothing), one before 1.30 answers with v2beta1, and one that has no
// aggregated document at all with 406.
const Accept = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList;profile=nopeer," +
	"application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList," +
	"application/json;g=apidiscovery.k8s.io;v=v2beta1;as=APIGroupDiscoveryList"

// Results of one read of a server, also the values of the metric's label.
const (
	resultRead        = "read"        // ready, and its view is a new one
	resultConfirmed   = "confirmed"   // ready, and its view is still the same
	resultUnready     = "unready"     // /readyz says no
	resultUnreachable = "unreachable" // no answer, or none in time
	resultRefused     = "refused"     // it does not accept who we are, or that we read
	resultInvalid     = "invalid"     // ready, but its documents can't be used
	resultUnsupported = "unsupported" // ready, but too old
)

var results = []string{resultRead, resultConfirmed, resultUnready, resultUnreachable, resultRefused, resultInvalid, resultUnsupported}

// readiness is what one read told of a server's /readyz.
type readiness int

const (
	noAnswer readiness = iota // the server could not be asked
	notSaid                   // it answered, but not this
	isReady
	isUnready
)

// reading is what one read of a server gave.
type reading struct {
	result string
	ready  readiness
	// view is set if result is read or confirmed, and is the same pointer as before if it is confirmed.
	view *View
	// etags are the ETags of the view's documents, by path; those that the server gives.
	etags map[string]string
	// err says why there is no view.
	err error
	// dropped counts entries that were left out of a new view, by reason, and first is one of them.
	dropped map[string]int
	first   string
}

// client reads one server over one connection. It is used by one goroutine.
type client struct {
	connection
	// limit is how many bytes a document may have.
	limit int64

	view      *View
	documents map[string]*cached
}

// cached is the last document of a path.
type cached struct {
	etag    string
	groups  []apidiscoveryv2.APIGroupDiscovery
	partial map[schema.GroupVersion]bool
}

func newClient(address string, timeout time.Duration, credentials *Credentials) *client {
	return &client{connection: connection{address: address, timeout: timeout, credentials: credentials}, limit: maxDocumentBytes}
}

// read asks whether the server is ready and then for its documents; timeout bounds all of it.
func (c *client) read(ctx context.Context) reading {
	ctx, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()
	c.connectWithCurrentFiles()

	if r, ok := c.ready(ctx); !ok {
		return r
	}
	out := reading{ready: isReady}
	documents, changed := map[string]*cached{}, false
	for _, path := range []string{"/api", "/apis"} {
		d, parsed, err := c.document(ctx, path)
		if err != nil {
			return c.failed(err, isReady)
		}
		documents[path] = d
		if parsed != nil {
			changed = true
			out.add(*parsed)
		}
	}
	if len(documents["/api"].groups) == 0 {
		return reading{result: resultInvalid, ready: isReady, err: errors.New("reading /api: the core group is missing")}
	}
	if changed {
		// A server that restarted in between would have answered with a document that is still filling up.
		if r, ok := c.ready(ctx); !ok {
			return r
		}
	}
	c.documents, out.etags = documents, etagsOf(documents)
	view := &View{}
	for _, path := range []string{"/api", "/apis"} {
		view.Groups = append(view.Groups, documents[path].groups...)
		view.Partial = anyPartial(view.Partial, documents[path].partial)
	}
	if c.view != nil && (!changed || reflect.DeepEqual(view, c.view)) {
		out.result, out.view = resultConfirmed, c.view
		return out
	}
	c.view = view
	out.result, out.view = resultRead, view
	return out
}

func etagsOf(documents map[string]*cached) map[string]string {
	out := map[string]string{}
	for path, d := range documents {
		if validETag(d.etag) {
			out[path] = d.etag
		}
	}
	return out
}

func (r *reading) add(d document) {
	if r.dropped == nil {
		r.dropped = map[string]int{}
	}
	for reason, n := range d.dropped {
		r.dropped[reason] += n
	}
	if r.first == "" {
		r.first = d.first
	}
}

// ready asks /readyz; if the answer is no, the reading says why.
func (c *client) ready(ctx context.Context) (reading, bool) {
	status, body, err := c.readyz(ctx)
	switch {
	case err != nil:
		return c.failed(err, noAnswer), false
	case status == http.StatusOK:
		return reading{ready: isReady}, true
	case status == http.StatusUnauthorized || status == http.StatusForbidden:
		return c.failed(refused("/readyz", status), notSaid), false
	default:
		return reading{result: resultUnready, ready: isUnready, err: fmt.Errorf("/readyz answered %d: %.200q", status, body)}, false
	}
}

// document gets a path's document: the one known already if the server confirms it, else a new one, which is then also
// given as parsed.
func (c *client) document(ctx context.Context, path string) (*cached, *document, error) {
	known := c.documents[path]
	header := http.Header{"Accept": {Accept}}
	if known != nil && known.etag != "" {
		header.Set("If-None-Match", known.etag)
	}
	resp, err := c.get(ctx, path, header)
	if err != nil {
		return nil, nil, err
	}
	defer func() { _ = resp.Body.Close() }()
	switch resp.StatusCode {
	case http.StatusOK:
	case http.StatusNotModified:
		if header.Get("If-None-Match") == "" {
			return nil, nil, invalid(fmt.Errorf("reading %s: the server answered 304, but was asked nothing", path))
		}
		return known, nil, nil
	case http.StatusUnauthorized, http.StatusForbidden:
		return nil, nil, refused(path, resp.StatusCode)
	case http.StatusNotAcceptable:
		return nil, nil, unsupported(path)
	default:
		return nil, nil, invalid(fmt.Errorf("reading %s: the server answered %d", path, resp.StatusCode))
	}
	mediaType, params, err := mime.ParseMediaType(resp.Header.Get("Content-Type"))
	if err != nil || mediaType != "application/json" {
		return nil, nil, invalid(fmt.Errorf("reading %s: the server answered in %.60q", path, resp.Header.Get("Content-Type")))
	}
	if params["as"] != "APIGroupDiscoveryList" {
		return nil, nil, unsupported(path)
	}
	doc, err := parseDocument(&limited{r: resp.Body, n: c.limit}, path == "/api")
	if err != nil {
		err = fmt.Errorf("reading %s: %w", path, err)
		if ctx.Err() != nil || isNetwork(err) {
			return nil, nil, err
		}
		return nil, nil, invalid(err)
	}
	return &cached{etag: resp.Header.Get("ETag"), groups: doc.groups, partial: doc.partial}, &doc, nil
}

// failed makes a reading of an error. After one of the network a new connection is made next time, since the old one
// may be dead without anyone having said so.
func (c *client) failed(err error, ready readiness) reading {
	var known *failure
	if errors.As(err, &known) {
		return reading{result: known.result, ready: ready, err: err}
	}
	c.disconnect()
	if ready == noAnswer && notOurs(err) {
		return reading{result: resultRefused, ready: notSaid, err: fmt.Errorf("no TLS with the server (see tlsCertFile and peerCAFile): %w", err)}
	}
	return reading{result: resultUnreachable, ready: ready, err: err}
}

// notOurs says that a server was there, but would have no TLS with us or we none with it. That may be our certificate's
// or our authority's fault, and is no reason to take the server away from Envoys, which have their own.
func notOurs(err error) bool {
	var alert *net.OpError
	var unverified *tls.CertificateVerificationError
	return errors.As(err, &alert) && alert.Op == "remote error" || errors.As(err, &unverified)
}

// failure is an answer that gives no view, as against no answer.
type failure struct {
	result string
	err    error
}

func (f *failure) Error() string { return f.err.Error() }
func (f *failure) Unwrap() error { return f.err }

func invalid(err error) error { return &failure{resultInvalid, err} }

func refused(path string, status int) error {
	return &failure{resultRefused, fmt.Errorf("the server answered %s with %d: it does not accept xds-server's certificate, or does not let it read (see tlsCertFile), or has only just started", path, status)}
}

func unsupported(path string) error {
	return &failure{resultUnsupported, fmt.Errorf("the server has no aggregated discovery at %s: xds-server needs Kubernetes 1.27, or 1.26 with the feature gate AggregatedDiscoveryEndpoint", path)}
}

// isNetwork tells a document that could not be read to its end from one that is wrong.
func isNetwork(err error) bool {
	var n net.Error
	return errors.As(err, &n) || errors.Is(err, io.ErrUnexpectedEOF)
}
