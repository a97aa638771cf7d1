package routing

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"xds-server/test/e2e/suite"
	"xds-server/test/lab"
	"xds-server/test/plane"
)

const (
	tableChanges = 50
	// watchesOfEach are opened at each front for each of two kinds of object, protocols and credentials: 208 in all.
	watchesOfEach = 13
	claimedGroup  = "flux.example.com"
)

// changing is a control plane whose tables change as its twins claim: each server has one, and the newer one does not
// serve policy/v1, so that both fronts have something to send to a peer.
type changing struct {
	world
	twins map[string]*twin // by the name of the server
}

func startChanging(s *suite.S) changing {
	s.Helper()
	w := alone(s, lab.Config{Nodes: []lab.NodeConfig{
		{Name: "old", Version: lab.Kube136},
		{Name: "new", Version: lab.Kube137, RuntimeConfig: []string{"policy/v1=false"}},
	}}, plane.Options{NoXDSServer: true, PollInterval: 200 * time.Millisecond})
	c := changing{w, map[string]*twin{}}
	for name, n := range w.Plane.Nodes {
		c.twins[name] = newTwin(s, w, n)
	}
	for name, n := range w.Plane.Nodes {
		rewriteConfig(s, n, func(config map[string]any) {
			servers := config["servers"].([]any)
			for of, t := range c.twins {
				servers = append(servers, map[string]any{"name": of + "-twin", "address": t.Address})
			}
			config["servers"] = servers
		})
		if err := n.XDSServer.Start(); err != nil {
			s.Fatalf("%s: %v", name, err)
		}
	}
	c.change(0)
	if err := w.WaitReady(s.Ctx); err != nil {
		s.Fatal(err)
	}
	return c
}

// change makes the twins claim what they do after that many changes: every other time they serve, beside their servers,
// what the fronts need a peer for, or what is local; and one of them serves what was never there before.
func (c changing) change(i int) {
	for name, t := range c.twins {
		t.claim(func(c *claims) {
			if i%2 == 0 {
				c.drop("", "configmaps")
			} else {
				c.drop("storagemigration.k8s.io", "storageversionmigrations")
				c.drop("policy", "poddisruptionbudgets")
			}
			if (name == "old") == (i%4 < 2) {
				c.add(claimedGroup, "v1", changeName(i))
			}
		})
	}
}

func changeName(i int) string { return fmt.Sprintf("change-%d", i) }

func containsChange(routes string, i int) bool {
	return strings.Contains(routes, claimedGroup+"/v1/"+changeName(i)+`"`)
}

// waitChanged waits until both Envoys have accepted a change, and the one before is gone from their routes. It gives the
// routes' versions.
func (c changing) waitChanged(s *suite.S, i int) map[string]string {
	s.Helper()
	ctx, cancel := context.WithTimeout(s.Ctx, 20*time.Second)
	defer cancel()
	versions := map[string]string{}
	for name, n := range c.Plane.Nodes {
		looked := ""
		err := plane.Eventually(ctx, fmt.Sprintf("the Envoy of %s has change %d", name, i), func() error {
			dump, err := routesVersion(ctx, n)
			if err == nil && dump == looked {
				err = fmt.Errorf("its routes are still %s", dump)
			}
			if err != nil {
				return err
			}
			looked = dump
			version, routes, err := routesOf(ctx, n)
			if err != nil {
				return err
			}
			if !containsChange(routes, i) || containsChange(routes, i-1) {
				return fmt.Errorf("its routes are of version %s", version)
			}
			versions[name] = version
			return nil
		})
		if err != nil {
			s.Fatal(err)
		}
	}
	return versions
}

func TestNoWatchEndsWhileTheTableChanges(t *testing.T) {
	suite.Scenario(t, "A4", fmt.Sprintf("%d watches open while the table changes %d times and clusters come and go: none ends, no request fails", 16*watchesOfEach, tableChanges), func(s *suite.S) {
		c := startChanging(s)
		c.waitChanged(s, 0)
		herald := startHerald(s, c.world)
		watches := herald.open()
		herald.cry(0, watches)
		load := startSteady(s, c.world, localThing(c.old), newerThing(c.old), localThing(c.updated), olderThing(c.updated))

		before, seen, came := map[string]int{}, map[string]map[string]bool{}, map[string]map[string]bool{}
		for name, n := range c.Plane.Nodes {
			before[name] = counter(s, n, "http.routed.rds.front.update_success")
			seen[name], came[name] = map[string]bool{}, map[string]bool{}
		}
		for i := 1; i <= tableChanges; i++ {
			c.change(i)
			for name, version := range c.waitChanged(s, i) {
				seen[name][version] = true
				for cluster := range clustersOf(s, c.Plane.Nodes[name]) {
					came[name][cluster] = true
				}
			}
			if i%10 == 0 {
				herald.cry(i, watches)
			}
		}
		for name, n := range c.Plane.Nodes {
			accepted := counter(s, n, "http.routed.rds.front.update_success") - before[name]
			rejected := counter(s, n, "http.routed.rds.front.update_rejected") + counter(s, n, "cluster_manager.cds.update_rejected")
			if len(seen[name]) != tableChanges || accepted < tableChanges || rejected != 0 {
				s.Errorf("the config dump of %s showed %d versions of the routes, want %d; accepted %d, rejected %d",
					name, len(seen[name]), tableChanges, accepted, rejected)
			}
			removed := counter(s, n, "cluster_manager.cluster_removed")
			if removed < tableChanges {
				s.Errorf("only %d clusters went from %s", removed, name)
			}
			s.Logf("%s: %d versions accepted, %d clusters removed, among them %d different ones", name, accepted, removed, len(came[name]))
		}
		load.stopClean()
		herald.cry(tableChanges+1, watches)
		for _, w := range watches {
			if err := w.end(); err != nil {
				s.Errorf("%s: %v", w.what, err)
			}
		}
		withoutOrder(s, c, tableChanges+1)
	})
}

// A herald is an object of each kind, whose changes every watch has to tell.
type herald struct {
	s      *suite.S
	w      world
	things []thing
}

const heraldName = "herald"

func startHerald(s *suite.S, w world) *herald {
	s.Helper()
	h := &herald{s, w, []thing{localThing(w.old), newerThing(w.old), localThing(w.updated), olderThing(w.updated)}}
	client := s.Client(w.Lab, w.Token("alice"), lab.HTTP2)
	for _, o := range h.things {
		// The local kind is the same at both fronts.
		if a := s.Call(client, "POST", o.node.FrontURL()+o.collection, o.json(heraldName), nil); a.Status != 201 && a.Status != 409 {
			s.Fatalf("creating the herald at %s answered %d: %s", o.collection, a.Status, a.Body)
		}
	}
	return h
}

// open opens watches at each front: half of local kinds and half of peer-only ones, half over HTTP/1.1 and half over
// HTTP/2, half with tokens and half with certificates.
func (h *herald) open() []*openWatch {
	h.s.Helper()
	certificate, err := h.w.NewClientCertificate("erin", "lab:readers")
	if err != nil {
		h.s.Fatal(err)
	}
	var out []*openWatch
	for _, o := range h.things {
		for _, protocol := range []lab.Protocol{lab.HTTP1, lab.HTTP2} {
			for _, credential := range []lab.Credential{h.w.Token("bob"), certificate} {
				client := h.s.Client(h.w.Lab, credential, protocol)
				for range watchesOfEach {
					out = append(out, h.watch(client, o))
				}
			}
		}
	}
	return out
}

// cry changes the herald of every kind, and waits until every watch has told of it.
func (h *herald) cry(round int, watches []*openWatch) {
	h.s.Helper()
	client := h.s.Client(h.w.Lab, h.w.Token("alice"), lab.HTTP2)
	for _, o := range h.things {
		a := h.s.Call(client, "PATCH", o.node.FrontURL()+o.collection+"/"+heraldName, fmt.Sprintf(`{"metadata":{"annotations":{"cry":"%d"}}}`, round+1),
			http.Header{"Content-Type": {"application/merge-patch+json"}})
		if a.Status != 200 {
			h.s.Fatalf("changing the herald at %s answered %d: %s", o.collection, a.Status, a.Body)
		}
	}
	ctx, cancel := context.WithTimeout(h.s.Ctx, 10*time.Second)
	defer cancel()
	for _, w := range watches {
		if err := plane.Eventually(ctx, w.what+" tells of it", func() error { return w.heard(round + 1) }); err != nil {
			h.s.Fatal(err)
		}
	}
}

// An openWatch is one watch of a herald.
type openWatch struct {
	what   string
	cry    atomic.Int64 // the last one that it told of
	cancel func()
	done   chan struct{}

	mu  sync.Mutex
	err error // why it ended
}

func (h *herald) watch(client *http.Client, o thing) *openWatch {
	h.s.Helper()
	ctx, cancel := context.WithCancel(h.s.Ctx)
	url := o.node.FrontURL() + o.collection + "?watch=1&timeoutSeconds=3600&fieldSelector=metadata.name%3D" + heraldName
	w := &openWatch{what: "a watch of " + o.what + " objects at " + o.node.Name, cancel: cancel, done: make(chan struct{})}
	r, err := http.NewRequestWithContext(ctx, "GET", url, nil)
	if err != nil {
		h.s.Fatal(err)
	}
	answer, err := client.Do(r)
	if err != nil {
		h.s.Fatalf("%s: %v", w.what, err)
	}
	if answer.StatusCode != 200 {
		h.s.Fatalf("%s answered %d", w.what, answer.StatusCode)
	}
	h.s.Cleanup(func() { _ = w.end() })
	go func() {
		defer close(w.done)
		defer answer.Body.Close()
		err := w.listen(json.NewDecoder(answer.Body))
		w.mu.Lock()
		defer w.mu.Unlock()
		if ctx.Err() == nil {
			w.err = fmt.Errorf("ended: %w", err)
		}
	}()
	return w
}

func (w *openWatch) listen(events *json.Decoder) error {
	for {
		var e struct {
			Type   string
			Object struct {
				Metadata struct{ Annotations map[string]string }
			}
		}
		if err := events.Decode(&e); err != nil {
			return err
		}
		if e.Type != "ADDED" && e.Type != "MODIFIED" {
			return fmt.Errorf("an event of type %s", e.Type)
		}
		var cry int64
		_, _ = fmt.Sscan(e.Object.Metadata.Annotations["cry"], &cry)
		w.cry.Store(cry)
	}
}

func (w *openWatch) heard(round int) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.err == nil && w.cry.Load() != int64(round) {
		return fmt.Errorf("its last is %d and not %d", w.cry.Load(), round)
	}
	return w.err
}

// end ends the watch, and says if it had ended before.
func (w *openWatch) end() error {
	w.cancel()
	<-w.done
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.err
}
