package discovery

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	apidiscoveryv2 "k8s.io/api/apidiscovery/v2"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"golang.org/x/sync/errgroup"

	"xds-server/test/e2e/suite"
	"xds-server/test/lab"
	"xds-server/test/plane"
)

// What clients ask for.
const (
	asJSON     = "application/json"
	asYAML     = "application/yaml"
	asProtobuf = "application/vnd.kubernetes.protobuf"
	asCBOR     = "application/cbor"

	aggregated     = ";g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"
	aggregatedBeta = ";g=apidiscovery.k8s.io;v=v2beta1;as=APIGroupDiscoveryList"

	openAPIv2Protobuf = "application/com.github.proto-openapi.spec.v2@v1.0+protobuf"
	openAPIv3Protobuf = "application/com.github.proto-openapi.spec.v3@v1.0+protobuf"

	toldBy = "X-Kubernetes-Discovery"
)

// A document is one path in one media type.
type document struct{ path, accept string }

// A reply is what a client sees of a document.
type reply struct {
	status            int
	kind, etag, cache string
	vary              string
	body              []byte
}

// documents are a server's or a front's, all of them.
type documents map[document]reply

// fixedDocuments are those whose paths do not depend on what is served.
func fixedDocuments() []document {
	var out []document
	for _, path := range []string{"/api", "/apis"} {
		for _, accept := range []string{
			asJSON + aggregated, asYAML + aggregated, asProtobuf + aggregated, asCBOR + aggregated,
			asJSON + aggregatedBeta, asProtobuf + aggregatedBeta,
			asJSON + aggregatedBeta + "," + asJSON, // as client-go 0.26 asks
			asJSON, asYAML, asProtobuf, "*/*", "text/plain",
		} {
			out = append(out, document{path, accept})
		}
	}
	for _, accept := range []string{asJSON, asProtobuf, openAPIv2Protobuf, "*/*"} {
		out = append(out, document{"/openapi/v2", accept})
	}
	return append(out, document{"/openapi/v3", asJSON}, document{"/openapi/v3", "*/*"})
}

// versionDocuments are the documents of groups and versions.
func versionDocuments(groups []apidiscoveryv2.APIGroupDiscovery) []document {
	paths := map[string]bool{"/api/v1": true}
	for _, g := range groups {
		if g.Name == "" {
			continue
		}
		paths["/apis/"+g.Name] = true
		for _, v := range g.Versions {
			paths["/apis/"+g.Name+"/"+v.Version] = true
		}
	}
	var out []document
	for _, path := range slices.Sorted(maps.Keys(paths)) {
		for _, accept := range []string{asJSON, asYAML, asProtobuf} {
			out = append(out, document{path, accept})
		}
	}
	return out
}

// everyDocument reads all documents at a URL: those that it names itself, and those of groups.
func everyDocument(s *suite.S, client *http.Client, url string, groups []apidiscoveryv2.APIGroupDiscovery) (documents, error) {
	list := append(fixedDocuments(), versionDocuments(groups)...)
	index, err := readIndex(s, client, url)
	if err != nil {
		return nil, err
	}
	for _, path := range slices.Sorted(maps.Values(index)) {
		list = append(list, document{path, asJSON}, document{path, openAPIv3Protobuf})
	}
	return readDocuments(s.Ctx, client, url, list)
}

// readIndex reads where the index of OpenAPI v3 has each document.
func readIndex(s *suite.S, client *http.Client, url string) (map[string]string, error) {
	a, err := lab.Call(s.Ctx, client, "GET", url+"/openapi/v3", "", nil)
	if err != nil {
		return nil, err
	}
	return openAPIv3Index(a)
}

func openAPIv3Index(a *lab.Answer) (map[string]string, error) {
	var index struct {
		Paths map[string]struct{ ServerRelativeURL string }
	}
	if err := json.Unmarshal(a.Body, &index); a.Status != 200 || err != nil {
		return nil, fmt.Errorf("/openapi/v3 answered %d: %.300s (%w)", a.Status, a.Body, cmp.Or(err, errStatus))
	}
	out := map[string]string{}
	for name, p := range index.Paths {
		out[name] = p.ServerRelativeURL
	}
	return out, nil
}

var errStatus = errors.New("want 200")

func readDocuments(ctx context.Context, client *http.Client, url string, list []document) (documents, error) {
	out := documents{}
	var mu sync.Mutex
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(6)
	for _, d := range list {
		g.Go(func() error {
			a, err := lab.Call(ctx, client, "GET", url+d.path, "", http.Header{"Accept": {d.accept}})
			if err != nil {
				return err
			}
			mu.Lock()
			defer mu.Unlock()
			out[d] = reply{a.Status, a.Header.Get("Content-Type"), a.Header.Get("ETag"), a.Header.Get("Cache-Control"), vary(a), a.Body}
			return nil
		})
	}
	return out, g.Wait()
}

// vary are the values of that header in one form: whoever passes them on may put them into one line or many.
func vary(a *lab.Answer) string {
	return strings.ReplaceAll(strings.Join(a.Header.Values("Vary"), ","), " ", "")
}

// differences tells where two fronts' documents are not the same, at most a few.
func (d documents) differences(other documents) error {
	var out []string
	for _, key := range slices.SortedFunc(maps.Keys(d), byPath) {
		a, b := d[key], other[key]
		if a.status != b.status || a.kind != b.kind || a.etag != b.etag || a.cache != b.cache || a.vary != b.vary || !bytes.Equal(a.body, b.body) {
			out = append(out, fmt.Sprintf("%s as %s: %s | %s%s", key.path, key.accept, a, b, firstDifference(a.body, b.body)))
		}
	}
	for _, key := range slices.SortedFunc(maps.Keys(other), byPath) {
		if _, ok := d[key]; !ok {
			out = append(out, fmt.Sprintf("%s as %s is the second one's only", key.path, key.accept))
		}
	}
	if len(out) == 0 {
		return nil
	}
	return fmt.Errorf("%d of %d documents differ, first:\n%s", len(out), len(d), strings.Join(out[:min(4, len(out))], "\n"))
}

func byPath(a, b document) int {
	return cmp.Or(cmp.Compare(a.path, b.path), cmp.Compare(a.accept, b.accept))
}

func (r reply) String() string {
	return fmt.Sprintf("%d %s, %d bytes, ETag %.12s, %q, %q", r.status, r.kind, len(r.body), r.etag, r.cache, r.vary)
}

func firstDifference(a, b []byte) string {
	i := 0
	for i < len(a) && i < len(b) && a[i] == b[i] {
		i++
	}
	if i == len(a) && i == len(b) {
		return ""
	}
	part := func(b []byte) []byte { return b[max(0, min(i, len(b))-60):min(i+60, len(b))] }
	return fmt.Sprintf("\n   at byte %d: %q | %q", i, part(a), part(b))
}

// list is the aggregated document of a server or a front, the core group included.
func list(s *suite.S, client *http.Client, url, profile string) ([]apidiscoveryv2.APIGroupDiscovery, error) {
	var out []apidiscoveryv2.APIGroupDiscovery
	for _, path := range []string{"/api", "/apis"} {
		a, err := lab.Call(s.Ctx, client, "GET", url+path, "", http.Header{"Accept": {asJSON + aggregated + profile}})
		if err != nil {
			return nil, err
		}
		var l apidiscoveryv2.APIGroupDiscoveryList
		if json.Unmarshal(a.Body, &l) != nil || a.Status != 200 || l.Kind != "APIGroupDiscoveryList" {
			return nil, fmt.Errorf("%s answered %d: %.300s", path+profile, a.Status, a.Body)
		}
		out = append(out, l.Items...)
	}
	return out, nil
}

func mustList(s *suite.S, client *http.Client, url, profile string) []apidiscoveryv2.APIGroupDiscovery {
	s.Helper()
	out, err := list(s, client, url, profile)
	if err != nil {
		s.Fatal(err)
	}
	return out
}

// groupList is what an aggregated document lists.
type groupList = []apidiscoveryv2.APIGroupDiscovery

// nopeer asks for a server's own document.
const nopeer = ";profile=nopeer"

// claims are everything that documents say is served: versions, and the verbs of each resource and subresource.
func claims(lists ...[]apidiscoveryv2.APIGroupDiscovery) map[string]bool {
	out := map[string]bool{}
	for _, groups := range lists {
		for _, g := range groups {
			for _, v := range g.Versions {
				gv := g.Name + "/" + v.Version
				out[gv] = true
				for _, r := range v.Resources {
					for _, verb := range r.Verbs {
						out[gv+"/"+r.Resource+":"+verb] = true
					}
					for _, sub := range r.Subresources {
						for _, verb := range sub.Verbs {
							out[gv+"/"+r.Resource+"/"+sub.Subresource+":"+verb] = true
						}
					}
				}
			}
		}
	}
	return out
}

// without are what the first has and the second has not, sorted.
func without(a, b map[string]bool) []string {
	var out []string
	for k := range a {
		if !b[k] {
			out = append(out, k)
		}
	}
	slices.Sort(out)
	return out
}

func sameClaims(got, want map[string]bool) error {
	if missing, surplus := without(want, got), without(got, want); len(missing)+len(surplus) > 0 {
		return fmt.Errorf("missing %v, surplus %v", missing, surplus)
	}
	return nil
}

// resourceClaims are the same of a legacy document.
func resourceClaims(l metav1.APIResourceList) map[string]bool {
	out := map[string]bool{}
	gv := l.GroupVersion
	if gv == "v1" {
		gv = "/v1"
	}
	out[gv] = true
	for _, r := range l.APIResources {
		for _, verb := range r.Verbs {
			out[gv+"/"+r.Name+":"+verb] = true
		}
	}
	return out
}

// settled waits until every front has all documents equal and complete: the aggregated ones within two poll intervals of
// the call, and all of them in every round of reading that begins two poll intervals after the servers' own documents
// last changed: a kube-apiserver goes on changing its OpenAPI for seconds after a start. It gives the documents.
func settled(s *suite.S, w world, fronts []*plane.Node, what string, complete func(groupList) error) documents {
	s.Helper()
	client := s.Client(w.Lab, w.Token("alice"), lab.HTTP2)
	changed := time.Now()
	servers := watchServers(s, w)
	defer servers.end()
	var groups groupList
	for {
		began := time.Now()
		var err error
		if groups, err = complement(s, client, fronts, complete); err == nil {
			fmt.Printf("       %s: listed by %d fronts when asked %.1f s after", what, len(fronts), began.Sub(changed).Seconds())
			break
		}
		if began.Sub(changed) > 2*pollInterval {
			s.Fatalf("%s: after two poll intervals: %v", what, err)
		}
	}
	for {
		began := time.Now()
		docs, err := round(s, client, fronts, groups)
		last := servers.changed()
		if err == nil {
			fmt.Printf(", all %d documents equal when read %.1f s after, in %.1f s; the servers' own last changed %.1f s before that\n",
				len(docs), began.Sub(changed).Seconds(), time.Since(began).Seconds(), began.Sub(last).Seconds())
			return docs
		}
		if began.Sub(last) > 2*pollInterval {
			fmt.Println()
			s.Fatalf("%s: %.1f s after the servers' own last changed: %v", what, began.Sub(last).Seconds(), err)
		}
		if began.Sub(changed) > patience {
			s.Fatalf("%s: the servers' own documents do not settle: %v", what, err)
		}
		fmt.Printf(" (%.1f s after: %.150s)", began.Sub(changed).Seconds(), strings.ReplaceAll(err.Error(), "\n", " "))
	}
}

// patience is how long servers' own documents may go on changing.
const patience = time.Minute

// servers tells when the servers' own documents last changed.
type servers struct {
	stop context.CancelFunc
	done errgroup.Group
	last atomic.Int64
}

// watchServers asks every server that runs for its own documents, a few times in each poll interval.
func watchServers(s *suite.S, w world) *servers {
	ctx, stop := context.WithCancel(s.Ctx)
	out := &servers{stop: stop}
	out.last.Store(time.Now().UnixNano())
	client := s.Client(w.Lab, w.Admin(), lab.HTTP2)
	for _, n := range w.nodes {
		if !n.Server.Running() {
			continue
		}
		out.done.Go(func() error {
			tick := time.NewTicker(pollInterval / 5)
			defer tick.Stop()
			seen, etags := map[document]string{}, map[document]string{}
			for first := true; ; first = false {
				for _, d := range []document{
					{"/api", asJSON + aggregated + nopeer}, {"/apis", asJSON + aggregated + nopeer}, {"/apis", asJSON},
					{"/openapi/v3", asJSON}, {"/openapi/v2", openAPIv2Protobuf},
				} {
					began := time.Now()
					a, err := lab.Call(ctx, client, "GET", n.DirectURL()+d.path, "", http.Header{"Accept": {d.accept}, "If-None-Match": {etags[d]}})
					if err != nil || a.Status == http.StatusNotModified {
						continue // or it goes, or the watch ends
					}
					etags[d] = a.Header.Get("ETag")
					sum := fmt.Sprintf("%d %x", a.Status, sha256.Sum256(a.Body))
					if !first && seen[d] != sum {
						out.last.Store(began.UnixNano())
					}
					seen[d] = sum
				}
				select {
				case <-ctx.Done():
					return nil
				case <-tick.C:
				}
			}
		})
	}
	return out
}

func (w *servers) changed() time.Time { return time.Unix(0, w.last.Load()) }

func (w *servers) end() {
	w.stop()
	_ = w.done.Wait()
}

// complement are the groups of every front, which have to be complete.
func complement(s *suite.S, client *http.Client, fronts []*plane.Node, complete func(groupList) error) (groups groupList, err error) {
	for _, n := range fronts {
		if groups, err = list(s, client, n.FrontURL(), ""); err == nil {
			err = complete(groups)
		}
		if err != nil {
			return nil, fmt.Errorf("at the front of %s: %w", n.Name, err)
		}
	}
	return groups, nil
}

// round reads all documents of all fronts once.
func round(s *suite.S, client *http.Client, fronts []*plane.Node, groups groupList) (documents, error) {
	all := make([]documents, len(fronts))
	var g errgroup.Group
	for i, n := range fronts {
		g.Go(func() error {
			var err error
			if all[i], err = everyDocument(s, client, n.FrontURL(), groups); err == nil {
				err = all[i].whole()
			}
			if err != nil {
				return fmt.Errorf("at the front of %s: %w", n.Name, err)
			}
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		return nil, err
	}
	for i, n := range fronts[1:] {
		if err := all[0].differences(all[i+1]); err != nil {
			return nil, fmt.Errorf("the fronts of %s and %s: %w", fronts[0].Name, n.Name, err)
		}
	}
	return all[0], nil
}

// whole says whether every document is there that has to be: some media types need not be known.
func (d documents) whole() error {
	var wrong []string
	for _, key := range slices.SortedFunc(maps.Keys(d), byPath) {
		r := d[key]
		optional := strings.Contains(key.accept, asCBOR) || strings.Contains(key.accept, "v2beta1") || key.accept == "text/plain" || key.path == "/openapi/v2" && key.accept == asProtobuf
		switch {
		case r.status == 200 && len(r.body) == 0:
			wrong = append(wrong, fmt.Sprintf("%s as %s is empty", key.path, key.accept))
		case r.status != 200 && (!optional || r.status != 406):
			wrong = append(wrong, fmt.Sprintf("%s as %s answered %d: %.300q", key.path, key.accept, r.status, r.body))
		}
	}
	if len(wrong) > 0 {
		return fmt.Errorf("%d of %d documents are not there, first and last:\n%s\n%s", len(wrong), len(d), wrong[0], wrong[len(wrong)-1])
	}
	return nil
}

// union says that a document claims just what the servers claim together.
func union(s *suite.S, w world, servers ...*plane.Node) func([]apidiscoveryv2.APIGroupDiscovery) error {
	s.Helper()
	client := s.Client(w.Lab, w.Admin(), lab.HTTP2)
	var lists [][]apidiscoveryv2.APIGroupDiscovery
	for _, n := range servers {
		lists = append(lists, mustList(s, client, n.DirectURL(), nopeer))
	}
	want := claims(lists...)
	return func(groups []apidiscoveryv2.APIGroupDiscovery) error { return sameClaims(claims(groups), want) }
}
