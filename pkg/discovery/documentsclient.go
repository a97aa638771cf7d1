package discovery

import (
	"bytes"
	"context"
	"crypto/sha512"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

const (
	// round is the time after which the documents that no cheap sign tells the changes of are read all the same.
	round = 5 * time.Minute
	// settling is for how long after a sign of a change they are read each time: servers write their documents one after
	// another, and some of them lazily.
	settling = 20 * time.Second
	// again is when a document is asked for again that the server could not give.
	again = 30 * time.Second
	// rested is when a legacy document is asked for again, at the earliest, that did not come in time: the others wait for it.
	rested = 2 * time.Minute
	// alive is how long a server may take to say anything at all, while a document does not come.
	alive = 2 * time.Second
	// cheap is what the index of OpenAPI v3, which a server may have to put together anew, may take to be read as often as
	// is wanted, and cheapV2 what /openapi/v2 may take.
	cheap, cheapV2 = 200 * time.Millisecond, 2 * time.Second
	// largeTimeout is for documents that the server has to put together first.
	largeTimeout = 30 * time.Second
)

// reasonOversized counts documents of OpenAPI that are larger than any real one, or together more than is kept.
const reasonOversized = "oversized"

// assignment is what the owner wants of a server's other documents. It is a value.
type assignment struct {
	// active says that the server is to be read now.
	active bool
	// incarnation is another one each time that it became active: what was read before says nothing any more.
	incarnation int
	view        *View
	// v2ETag belongs to the /openapi/v2 that the owner has.
	v2ETag string
	// wanted are hashes of documents of OpenAPI v3, by path, and budget is what they may have in bytes.
	wanted map[string]string
	budget int64
	// peers says that there are other servers, so that what is wanted follows what is read.
	peers bool
}

// documentsReading is what one read of a server's other documents gave.
type documentsReading struct {
	result string
	// err is the first that went wrong, though other documents may have been read, and what is its place.
	err  error
	what string
	// failed says that the server had better be asked less often.
	failed bool
	// cost is the time that the index of OpenAPI v3 took, if it was not cheap.
	cost time.Duration
	// documents are without any OpenAPI bodies; the same pointer as before if nothing changed, nil if they were not read.
	documents *Documents
	indexETag string
	// v2 is a new /openapi/v2, nil if there is none.
	v2     *OpenAPIV2
	v2ETag string
	// bodies are new ones, of those that were wanted.
	bodies map[string]body
	// missing are the hashes of those wanted ones that can't be had for now.
	missing map[string]string
	entries
}

// body is one document of OpenAPI v3.
type body struct {
	hash string
	json []byte
	// proven says that the hash is the content's own, so that any other server's document of this hash is the same.
	proven bool
}

// documentsClient reads the other documents of one server. It is used by one goroutine.
type documentsClient struct {
	connection
	known knownDocuments
	// skip are documents of OpenAPI v3 that can't be had for now.
	skip map[string]skipped
}

// knownDocuments is what is known of a server. A read works on a copy, which counts only once the server says that it
// was ready throughout.
type knownDocuments struct {
	incarnation int
	view        *View
	documents   *Documents

	index     map[string]Schema
	indexSum  [sha512.Size]byte
	indexETag string
	// lacking is since when an index is refused for what it lacks.
	lacking time.Time

	addresses []metav1.ServerAddressByClientCIDR
	listed    []schema.GroupVersion
	storage   map[schema.GroupVersion]stored

	// settled is until when a change may still be on its way; the others are when their documents are next read.
	settled, nextLists, nextV2, nextStorage time.Time
	// v2Rest is until when /openapi/v2 is left alone, which costs a server with many CRDs seconds.
	v2Rest time.Time
	// listsRest is until when /api and /apis are left alone.
	listsRest time.Time
}

type skipped struct {
	hash  string
	until time.Time
}

func newDocumentsClient(address string, timeout time.Duration, credentials *Credentials) *documentsClient {
	return &documentsClient{connection: connection{address: address, timeout: timeout, credentials: credentials}, skip: map[string]skipped{}}
}

// documentsRead is one read that is going on.
type documentsRead struct {
	*documentsClient
	a    assignment
	now  time.Time
	next knownDocuments
	out  documentsReading
	// changed says that there is something new, which must not be the half of a server that is starting.
	// touched that something was read which it may be in.
	changed, touched bool
	// reindexed says that the index is new, so that the owner's next wants are awaited.
	reindexed bool
}

func (c *documentsClient) read(ctx context.Context, a assignment) documentsReading {
	c.connectWithCurrentFiles()
	r := &documentsRead{documentsClient: c, a: a, now: time.Now(), next: c.known}
	r.next.storage = maps.Clone(c.known.storage)
	if r.next.storage == nil {
		r.next.storage = map[schema.GroupVersion]stored{}
	}
	if a.incarnation != c.known.incarnation {
		r.next.incarnation, r.next.nextLists, r.next.nextV2 = a.incarnation, time.Time{}, time.Time{}
		r.next.settled, r.next.nextStorage = r.now.Add(settling), r.now.Add(round)
		r.next.allDue()
		clear(c.skip)
	}
	for _, part := range []func(context.Context) error{r.readIndex, r.readStorage, r.readLists, r.readBodies, r.readV2, r.stillReady} {
		if err := part(ctx); err != nil {
			r.out.err = nil // this one matters more than what went wrong before
			r.problem("", err)
			r.out = documentsReading{result: r.out.result, err: r.out.err, what: r.out.what, failed: true, cost: r.out.cost, entries: r.out.entries}
			if !isFailure(err) {
				c.disconnect()
			}
			return r.out
		}
	}
	c.known = r.next
	r.out.documents, r.out.indexETag = c.known.documents, c.known.indexETag
	if r.out.result == "" {
		r.out.result = resultConfirmed
		if r.changed {
			r.out.result = resultRead
		}
	}
	return r.out
}

// problem remembers the first thing that went wrong.
func (r *documentsRead) problem(what string, err error) {
	if r.out.err != nil {
		return
	}
	r.out.err, r.out.what, r.out.result = err, what, resultUnreachable
	var f *failure
	if errors.As(err, &f) {
		r.out.result = f.result
	}
}

// partly is for a document that the server does not give: the others are read on, and it is asked for again later.
// Where there was no answer at all it gives the error back.
func (r *documentsRead) partly(what string, err error) error {
	if !isFailure(err) {
		return err
	}
	r.problem(what, err)
	return nil
}

func isFailure(err error) bool {
	var f *failure
	return errors.As(err, &f)
}

// readIndex reads /openapi/v3. A new one is read twice, the second time of a server that was ready in between: while it
// starts it knows but the half of its documents.
func (r *documentsRead) readIndex(ctx context.Context) error {
	fresh, err := r.indexOnce(ctx)
	if err != nil || !fresh {
		return err
	}
	if err := r.ready(ctx); err != nil {
		return err
	}
	if _, err := r.indexOnce(ctx); err != nil {
		return err
	}
	if path, ok := r.lacks(); ok {
		if r.next.lacking.IsZero() {
			r.next.lacking = r.now
		}
		if r.now.Sub(r.next.lacking) < again {
			r.problem("/openapi/v3", invalid(fmt.Errorf("reading /openapi/v3: %q is missing, though the server serves it: the last index stays for %s", path, again)))
			r.next.index, r.next.indexSum, r.next.indexETag = r.known.index, r.known.indexSum, r.known.indexETag
			return nil
		}
	}
	r.next.lacking = time.Time{}
	r.changed, r.touched, r.reindexed, r.next.settled = true, true, true, r.now.Add(settling)
	r.next.schemasChanged(r.known.index)
	return nil
}

func (r *documentsRead) indexOnce(ctx context.Context) (fresh bool, err error) {
	const path = "/openapi/v3"
	began := time.Now()
	a, err := r.fetch(ctx, path, r.next.indexETag, maxIndexBytes, r.timeout)
	if took := time.Since(began); took > cheap {
		r.out.cost += took
	}
	if err != nil || a.unchanged {
		return false, err
	}
	sum := sha512.Sum512(a.body)
	if r.next.index != nil && sum == r.next.indexSum {
		r.next.indexETag = a.etag
		return false, nil
	}
	index, left, err := parseIndex(bytes.NewReader(a.body))
	if err != nil {
		return false, invalid(fmt.Errorf("reading %s: %w", path, err))
	}
	r.out.add(left)
	r.next.index, r.next.indexSum, r.next.indexETag = index, sum, a.etag
	return true, nil
}

// lacks finds a path that a new index has lost, though the view still has its group and version.
func (r *documentsRead) lacks() (string, bool) {
	for gv := range current(r.a.view) {
		path := schemaPath(gv)
		_, was := r.known.index[path]
		if _, is := r.next.index[path]; was && !is {
			return path, true
		}
	}
	return "", false
}

// readLists reads the legacy /api and /apis.
func (r *documentsRead) readLists(ctx context.Context) error {
	if r.now.Before(r.next.nextLists) && !r.now.Before(r.next.settled) || r.now.Before(r.next.listsRest) {
		return nil
	}
	r.touched, r.next.nextLists = true, r.now.Add(round)
	addresses, left, err := legacy(ctx, r, "/api", parseAddresses)
	if err == nil {
		r.next.addresses = addresses
		r.out.add(left)
	} else if err := r.listFailed(ctx, "/api", err); err != nil {
		return err
	}
	listed, left, err := legacy(ctx, r, "/apis", parseGroups)
	if err == nil {
		r.next.listed = listed
		r.out.add(left)
	} else if err := r.listFailed(ctx, "/apis", err); err != nil {
		return err
	}
	return nil
}

func (r *documentsRead) listFailed(ctx context.Context, path string, err error) error {
	r.next.nextLists = r.now.Add(again)
	err, late := r.late(ctx, err)
	if late {
		r.next.listsRest = r.now.Add(rested)
	}
	return r.partly(path, err)
}

// readV2 reads /openapi/v2, which the server puts together for it.
func (r *documentsRead) readV2(ctx context.Context) error {
	// Without an ETag, each read would be of the whole document.
	if r.now.Before(r.next.nextV2) && (!r.now.Before(r.next.settled) || r.a.v2ETag == "") {
		return nil
	}
	if r.reindexed && r.a.peers {
		// It takes its server a second or more, which all other documents would wait for.
		r.next.nextV2 = time.Time{}
		return nil
	}
	if r.now.Before(r.next.v2Rest) {
		return nil
	}
	const path = "/openapi/v2"
	began := time.Now()
	a, err := r.fetch(ctx, path, r.a.v2ETag, maxOpenAPIBytes, largeTimeout)
	if took := time.Since(began); took > cheapV2 {
		r.next.v2Rest = time.Now().Add(restFactor * took)
	}
	switch {
	case errors.Is(err, errTooLarge):
		r.oversized(path)
		fallthrough
	case err != nil:
		r.next.nextV2 = r.now.Add(again)
		err, _ = r.late(ctx, err)
		return r.partly(path, err)
	case !a.unchanged && !isObject(a.body):
		r.next.nextV2 = r.now.Add(again)
		return r.partly(path, invalid(fmt.Errorf("reading %s: it is no JSON object", path)))
	}
	r.next.nextV2 = r.now.Add(round)
	if !a.unchanged {
		r.changed = true
		r.out.v2, r.out.v2ETag = &OpenAPIV2{Hash: fmt.Sprintf("%X", sha512.Sum512(a.body)), JSON: a.body}, a.etag
	}
	return nil
}

// late makes a failure of a document's own timeout, since it says little of the other documents. But if the server does not
// answer anything else either, the connection is gone, and each of them would take its timeout.
func (r *documentsRead) late(ctx context.Context, err error) (out error, late bool) {
	if ctx.Err() != nil || !errors.Is(err, context.DeadlineExceeded) {
		return err, false
	}
	ctx, cancel := context.WithTimeout(ctx, min(alive, r.timeout))
	defer cancel()
	if _, _, gone := r.readyz(ctx); gone != nil {
		return err, false
	}
	return &failure{resultUnreachable, err}, true
}

// readBodies reads what is wanted of OpenAPI v3.
func (r *documentsRead) readBodies(ctx context.Context) error {
	for _, path := range slices.Sorted(maps.Keys(r.a.wanted)) {
		hash := r.a.wanted[path]
		if s := r.skip[path]; r.next.index[path].Hash != hash || s.hash == hash && r.now.Before(s.until) {
			continue
		}
		at := "/openapi/v3/" + path + "?hash=" + hash
		a, err := r.fetch(ctx, at, "", min(maxOpenAPIBytes, r.a.budget), largeTimeout)
		if err == nil && !isObject(a.body) {
			err = invalid(fmt.Errorf("reading %s: it is no JSON object", at))
		}
		if err != nil {
			r.skip[path] = skipped{hash, r.now.Add(again)}
			if errors.Is(err, errTooLarge) {
				r.skip[path] = skipped{hash, r.now.Add(round)}
				r.oversized(path)
			}
			err, _ = r.late(ctx, err)
			if err := r.partly("/openapi/v3/"+path, err); err != nil {
				return err
			}
			continue
		}
		delete(r.skip, path)
		if r.out.bodies == nil {
			r.out.bodies = map[string]body{}
		}
		r.a.budget -= int64(len(a.body))
		proven := hash == fmt.Sprintf("%X", sha512.Sum512(a.body))
		r.out.bodies[path] = body{hash: hash, json: a.body, proven: proven}
		r.changed = true
	}
	maps.DeleteFunc(r.skip, func(path string, s skipped) bool { return r.next.index[path].Hash != s.hash })
	for path, s := range r.skip {
		if r.out.missing == nil {
			r.out.missing = map[string]string{}
		}
		r.out.missing[path] = s.hash
	}
	return nil
}

func (r *documentsRead) oversized(path string) {
	r.out.add(entries{dropped: map[string]int{reasonOversized: 1}, first: fmt.Sprintf("OpenAPI document %.100q (%s)", path, reasonOversized)})
}

// stillReady asks a last time whether the server is ready, if there is something new.
func (r *documentsRead) stillReady(ctx context.Context) error {
	if r.touched {
		r.compose()
	}
	if !r.changed {
		return nil
	}
	return r.ready(ctx)
}

func (r *documentsRead) ready(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, r.timeout)
	defer cancel()
	status, body, err := r.readyz(ctx)
	switch {
	case err != nil:
		return err
	case status != http.StatusOK:
		return &failure{resultUnready, fmt.Errorf("/readyz answered %d while documents were read: %.200q", status, body)}
	}
	return nil
}

func isObject(b []byte) bool {
	return bytes.HasPrefix(bytes.TrimLeft(b, " \t\r\n"), []byte("{")) && json.Valid(b)
}
