package snapshot

import (
	"context"
	"maps"
	"slices"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	cachev3 "github.com/envoyproxy/go-control-plane/pkg/cache/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// streamCache is the Publisher as go-control-plane's server sees it. The library's own snapshot cache cannot be used:
// it has one state per node, answers a rejected state-of-the-world request again at once, and can keep a resource that
// an Envoy has from elsewhere only if it has its content.
type streamCache Publisher

var _ cachev3.Cache = (*streamCache)(nil)

// CreateDeltaWatch opens an incremental request to answers.
func (c *streamCache) CreateDeltaWatch(req *cachev3.DeltaRequest, sub cachev3.Subscription, to chan cachev3.DeltaResponse) (func(), error) {
	return c.open(req, req.GetTypeUrl(), &watch{delta: req, deltaTo: to, sub: sub})
}

// CreateWatch opens a state-of-the-world request to answers.
func (c *streamCache) CreateWatch(req *cachev3.Request, sub cachev3.Subscription, to chan cachev3.Response) (func(), error) {
	return c.open(req, req.GetTypeUrl(), &watch{sotw: req, sotwTo: to, sub: sub})
}

func (c *streamCache) open(req any, typeURL string, w *watch) (func(), error) {
	p := (*Publisher)(c)
	p.mu.Lock()
	defer p.mu.Unlock()
	s := p.requests[req]
	delete(p.requests, req)
	k, served := kindOf(typeURL)
	if s == nil || !served {
		return func() {}, nil // nothing to say about this type, now or later
	}
	st := &s.types[k]
	st.subscribe(w)
	// A state-of-the-world answer that was not sent before the next request never will be.
	st.pushed = nil
	for name := range st.sent {
		if !st.follows(name) {
			delete(st.sent, name)
		}
	}
	p.flush(s)
	return func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		if st.watch == w {
			st.watch = nil
		}
	}, nil
}

// answer answers the stream's open request of a kind, if there is one and something to say.
func (p *Publisher) answer(s *stream, k kind, t *table) {
	st := &s.types[k]
	if st.watch == nil || !s.allowed(k) {
		return
	}
	var sent bool
	if st.watch.delta != nil {
		sent = s.answerDelta(k, t)
	} else {
		sent = s.answerSotw(k, t)
	}
	if !sent {
		return
	}
	st.answered = true
	st.watch = nil
	p.log.Debug("sending resources", zap.String("node", s.node.id), zap.String("type", kindName[k]),
		zap.String("phase", phaseName[s.phase]), zap.Strings("resources", slices.Sorted(maps.Keys(st.pushed.versions))),
		zap.Strings("removed", st.pushed.removed))
}

// answerDelta sends what changed.
func (s *stream) answerDelta(k kind, t *table) bool {
	st := &s.types[k]
	w := st.watch
	wanted, returned := s.wanted(k, t), w.sub.ReturnedResources()
	a := &answer{versions: map[string]string{}, version: setVersion(wanted)}
	for name, r := range wanted {
		if st.follows(name) && (returned[name] != r.version || st.again[name]) {
			a.versions[name] = r.version
		}
	}
	for name, version := range returned {
		if wanted[name] != nil || !s.removable(k) {
			continue
		}
		// An empty version marks a name that the client asks about.
		if s.phase == removing || version == "" {
			a.removed = append(a.removed, name)
		}
	}
	// What was rejected is sent again when the table has changed, for it may have been right in bad company.
	if st.rejectedVersion != a.version {
		for name, version := range st.rejected {
			if r := wanted[name]; r != nil && st.follows(name) && r.version == version {
				a.versions[name] = version
			}
		}
	}
	// An Envoy that starts waits for clusters even if there are none.
	first := st.wildcard && !st.answered && len(returned) == 0
	if len(a.versions) == 0 && len(a.removed) == 0 && !first {
		return false
	}
	slices.Sort(a.removed)
	resp := &discoveryv3.DeltaDiscoveryResponse{TypeUrl: kindURL[k], SystemVersionInfo: a.version, RemovedResources: a.removed}
	next := maps.Clone(returned)
	for _, name := range slices.Sorted(maps.Keys(a.versions)) {
		r := wanted[name]
		resp.Resources = append(resp.Resources, &discoveryv3.Resource{Name: name, Version: r.version, Resource: r.body})
		next[name] = r.version
	}
	for _, name := range a.removed {
		delete(next, name)
	}
	a.response = resp
	select {
	case w.deltaTo <- &cachev3.DeltaPassthroughResponse{DeltaRequest: w.delta, NextVersionMap: next, DeltaDiscoveryResponse: resp}:
		st.pushed = a
		for name := range a.versions {
			delete(st.again, name)
		}
		return true
	default:
		// One answer for each type fits. Never wait here: the reader may be waiting for the lock.
		return false
	}
}

// answerSotw sends everything that the client asked for, when something of it changed.
func (s *stream) answerSotw(k kind, t *table) bool {
	st := &s.types[k]
	w := st.watch
	want := map[string]*resource{}
	for name, r := range s.wanted(k, t) {
		if st.follows(name) {
			want[name] = r
		}
	}
	if s.phase != removing {
		for name, r := range st.sent {
			if want[name] == nil {
				want[name] = r
			}
		}
	}
	changed := k == clusters && len(want) != len(st.sent)
	for name, r := range want {
		changed = changed || st.sent[name] == nil || st.sent[name].version != r.version
	}
	if !changed && (st.answered || !st.wildcard) {
		return false
	}
	resp, versions := sotwResponse(k, want)
	if resp.GetVersionInfo() == st.rejectedVersion {
		return false
	}
	select {
	case w.sotwTo <- &cachev3.PassthroughResponse{Request: w.sotw, DiscoveryResponse: resp, ReturnedResources: versions}:
		st.pushed = &answer{response: resp, versions: versions, sent: want, version: resp.GetVersionInfo()}
		return true
	default:
		return false
	}
}

func sotwResponse(k kind, rs map[string]*resource) (*discoveryv3.DiscoveryResponse, map[string]string) {
	resp := &discoveryv3.DiscoveryResponse{TypeUrl: kindURL[k], VersionInfo: setVersion(rs)}
	versions := map[string]string{}
	for _, name := range slices.Sorted(maps.Keys(rs)) {
		resp.Resources = append(resp.Resources, rs[name].body)
		versions[name] = rs[name].version
	}
	return resp, versions
}

// Fetch answers a single question about any node that has a table, connected or not.
func (c *streamCache) Fetch(_ context.Context, req *cachev3.Request) (cachev3.Response, error) {
	p := (*Publisher)(c)
	p.mu.Lock()
	defer p.mu.Unlock()
	n := p.nodes[req.GetNode().GetId()]
	if n == nil || n.table == nil {
		return nil, status.Errorf(codes.NotFound, "node %q has no table here", req.GetNode().GetId())
	}
	k, served := kindOf(req.GetTypeUrl())
	if !served {
		return nil, status.Errorf(codes.InvalidArgument, "resources of type %q are not served", req.GetTypeUrl())
	}
	all := n.table.resources[k]
	if k == runtimes && !n.ready {
		all = readyOff
	}
	found := all
	if names := req.GetResourceNames(); len(names) > 0 && !slices.Contains(names, "*") {
		found = map[string]*resource{}
		for _, name := range names {
			if r := all[name]; r != nil {
				found[name] = r
			}
		}
	}
	resp, versions := sotwResponse(k, found)
	return &cachev3.PassthroughResponse{Request: req, DiscoveryResponse: resp, ReturnedResources: versions}, nil
}
