package discovery

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"xds-server/test/e2e/suite"
	"xds-server/test/lab"
	"xds-server/test/plane"
)

// A watcher asks every front for documents every 50 ms. An answer has to have all that some server serves throughout, and
// 503 is allowed for two poll intervals after a server or an xds-server went away: so long nobody may know of it.
type watcher struct {
	s      *suite.S
	cancel func()
	done   sync.WaitGroup

	mu          sync.Mutex
	asked       int
	vanished    []string
	unavailable []failure
	gone        []absence
}

// failure is a request that was not answered.
type failure struct {
	began, ended time.Time
	what         string
}

// absence is the time in which something went away.
type absence struct {
	began, ended time.Time
	what         string
}

// watched is one document, and what it must list.
type watched struct {
	document
	want   map[string]bool
	listed func(body []byte) (map[string]bool, error)
}

// watchAPIs watches what these servers serve now, at all fronts. They have to serve it throughout, or be held.
func watchAPIs(s *suite.S, w world, throughout ...*plane.Node) *watcher {
	s.Helper()
	list := watchedDocuments(s, w, throughout)
	ctx, cancel := context.WithCancel(s.Ctx)
	l := &watcher{s: s, cancel: cancel}
	s.Cleanup(cancel)
	for _, n := range w.nodes {
		client := s.Client(w.Lab, w.Token("bob"), lab.HTTP2)
		for _, d := range list {
			l.done.Go(func() { l.watch(ctx, client, n, d) })
		}
	}
	return l
}

func watchedDocuments(s *suite.S, w world, throughout []*plane.Node) []watched {
	s.Helper()
	client := s.Client(w.Lab, w.Admin(), lab.HTTP2)
	serving := map[string]int{} // by how many servers, of all
	for _, n := range w.nodes {
		for c := range claims(mustList(s, client, n.DirectURL(), nopeer)) {
			serving[c]++
		}
	}
	all, alone, index := map[string]bool{}, "", map[string]bool{}
	for _, n := range throughout {
		own := claims(mustList(s, client, n.DirectURL(), nopeer))
		maps.Copy(all, own)
		for _, c := range slices.Sorted(maps.Keys(own)) {
			if serving[c] == 1 && strings.Count(c, "/") == 1 && !strings.HasPrefix(c, "/") {
				alone = c
			}
		}
		paths, err := openAPIv3Index(s.Call(client, "GET", n.DirectURL()+"/openapi/v3", "", nil))
		if err != nil {
			s.Fatal(err)
		}
		for path := range paths {
			index[path] = true
		}
	}
	if alone == "" {
		s.Fatal("no version is served by one server alone")
	}
	fmt.Printf("       watching %d claims, /apis/%s, which one server has, and %d OpenAPI documents\n", len(all), alone, len(index))
	of := func(is func(claim string) bool) map[string]bool {
		out := maps.Clone(all)
		maps.DeleteFunc(out, func(c string, _ bool) bool { return !is(c) })
		return out
	}
	version := func(c string) bool { return strings.Count(c, "/") == 1 }
	core := func(c string) bool { return strings.HasPrefix(c, "/") }
	return []watched{
		{document{"/apis", asJSON + aggregated}, of(func(c string) bool { return !core(c) }), aggregatedClaims},
		{document{"/apis", asJSON}, of(func(c string) bool { return version(c) && !core(c) }), legacyVersions},
		{document{"/apis/" + alone, asJSON}, of(func(c string) bool { return c == alone || strings.HasPrefix(c, alone+"/") }), legacyClaims},
		{document{"/api/v1", asJSON}, of(core), legacyClaims},
		{document{"/openapi/v3", asJSON}, index, indexed},
	}
}

func aggregatedClaims(body []byte) (map[string]bool, error) {
	var l struct{ Items groupList }
	err := json.Unmarshal(body, &l)
	return claims(l.Items), err
}

func legacyVersions(body []byte) (map[string]bool, error) {
	var l metav1.APIGroupList
	err := json.Unmarshal(body, &l)
	out := map[string]bool{}
	for _, g := range l.Groups {
		for _, v := range g.Versions {
			out[v.GroupVersion] = true
		}
	}
	return out, err
}

func legacyClaims(body []byte) (map[string]bool, error) {
	var l metav1.APIResourceList
	err := json.Unmarshal(body, &l)
	return resourceClaims(l), err
}

func indexed(body []byte) (map[string]bool, error) {
	index, err := openAPIv3Index(&lab.Answer{Status: 200, Body: body})
	out := map[string]bool{}
	for path := range index {
		out[path] = true
	}
	return out, err
}

func (l *watcher) watch(ctx context.Context, client *http.Client, n *plane.Node, d watched) {
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	var good []byte // the last body that had everything
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		began := time.Now()
		a, err := lab.Call(ctx, client, "GET", n.FrontURL()+d.path, "", http.Header{"Accept": {d.accept}})
		if ctx.Err() != nil {
			return
		}
		what := fmt.Sprintf("%s: %s of %s as %s", began.Format("15:04:05.000"), d.path, n.Name, d.accept)
		l.mu.Lock()
		l.asked++
		switch {
		case err != nil:
			l.unavailable = append(l.unavailable, failure{began, time.Now(), fmt.Sprintf("%s: %v", what, err)})
		case a.Status == 503:
			l.unavailable = append(l.unavailable, failure{began, time.Now(), fmt.Sprintf("%s: %.300s", what, a.Body)})
		case a.Status != 200:
			l.vanished = append(l.vanished, fmt.Sprintf("%s answered %d: %.300s", what, a.Status, a.Body))
		case !bytes.Equal(a.Body, good):
			got, err := d.listed(a.Body)
			if missing := without(d.want, got); err != nil || len(missing) > 0 {
				l.vanished = append(l.vanished, fmt.Sprintf("%s (%s %q) lacks %d, first %.300v: %v", what, toldBy, a.Header.Get(toldBy), len(missing), missing, err))
			} else {
				good = a.Body
			}
		}
		l.mu.Unlock()
	}
}

// away has something go away, which excuses what is not answered for two poll intervals.
func (l *watcher) away(what string, goes func()) {
	began := time.Now()
	goes()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.gone = append(l.gone, absence{began, time.Now(), what})
}

// restart restarts a server at a version.
func (l *watcher) restart(n *plane.Node, version string) {
	l.s.Helper()
	l.away("the server of "+n.Name, func() {
		if err := n.Server.Stop(l.s.Ctx); err != nil {
			l.s.Fatal(err)
		}
	})
	if err := n.Server.Restart(l.s.Ctx, version); err != nil {
		l.s.Fatal(err)
	}
}

// end wants no API to have vanished, and every request to have been answered that is not excused.
func (l *watcher) end() {
	l.s.Helper()
	l.cancel()
	l.done.Wait()
	if n := len(l.vanished); n > 0 {
		l.s.Errorf("in %d of %d documents an API had vanished, first %s", n, l.asked, l.vanished[0])
	}
	unexcused := slices.DeleteFunc(slices.Clone(l.unavailable), func(f failure) bool {
		return slices.ContainsFunc(l.gone, func(g absence) bool { return f.ended.After(g.began) && f.began.Before(g.ended.Add(2*pollInterval)) })
	})
	if n := len(unexcused); n > 0 {
		var gone []string
		for _, g := range l.gone {
			gone = append(gone, fmt.Sprintf("%s from %s to %s", g.what, g.began.Format("15:04:05.000"), g.ended.Format("15:04:05.000")))
		}
		l.s.Errorf("%d of %d requests were not answered though nothing had just gone away (%s), first and last:\n%s\n%s",
			n, l.asked, strings.Join(gone, ", "), unexcused[0].what, unexcused[n-1].what)
	}
	fmt.Printf("       %d documents watched, %d not answered within two poll intervals of what went away\n", l.asked, len(l.unavailable)-len(unexcused))
}
