package snapshot

import (
	"maps"
	"slices"
	"time"

	cachev3 "github.com/envoyproxy/go-control-plane/pkg/cache/v3"
	"go.uber.org/zap"
)

// streamKey names a stream: go-control-plane counts the two protocols' streams apart.
type streamKey struct {
	sotw bool
	id   int64
}

// phase is how far a stream has come with its node's table.
type phase int

const (
	adding    phase = iota // clusters and endpoints are on their way
	switching              // routes are on their way
	removing               // what is not in the table is taken away
)

var phaseName = [...]string{"adding", "switching", "removing"}

// stream is one xDS stream.
type stream struct {
	key streamKey
	// typeURL is "" for the aggregated stream. Only there is an order between types.
	typeURL string
	// node is nil until the first request names it.
	node  *node
	types [kinds]typeState
	// request is the last one, until it became a watch.
	request any
	// ready says that this Envoy has routes, so that it may send its connections to the chain that needs them.
	ready bool

	phase phase
	// timer ends the phase's patience; expired is set when it did.
	timer   *time.Timer
	expired bool
}

// typeState is one type's subscription on a stream.
type typeState struct {
	subscribed bool
	wildcard   bool
	names      map[string]struct{}
	// answered says that the first request was answered.
	answered bool
	// watch is the request that may be answered now; nil while an answer is on its way.
	watch *watch
	// pushed was handed to the server, which has not yet numbered it.
	pushed *answer
	// nonces are the answers that the client has neither accepted nor rejected.
	nonces map[string]*answer
	// held is what the client is known to have: the versions it accepted, or brought with it.
	held map[string]string
	// again are names that the client subscribed to once more: it has forgotten them, whatever it was sent.
	again map[string]bool
	// sent is what a state-of-the-world client was last sent, and good what it last accepted.
	sent, good map[string]*resource
	// rejected are the versions in the last rejected answer. Envoy does not say which of them it could have used.
	rejected map[string]string
	reason   string
	rejectAt time.Time
	heldAt   time.Time
	// The versions of the last answers as a whole.
	sentVersion, heldVersion, rejectedVersion string
}

// watch is an open request, of either protocol.
type watch struct {
	delta   *cachev3.DeltaRequest
	deltaTo chan cachev3.DeltaResponse
	sotw    *cachev3.Request
	sotwTo  chan cachev3.Response
	sub     cachev3.Subscription
}

// answer is what one response carried.
type answer struct {
	response any
	versions map[string]string
	removed  []string
	sent     map[string]*resource
	version  string
}

// begin starts the order of things anew.
func (p *Publisher) begin(s *stream) { p.enter(s, adding) }

func (p *Publisher) enter(s *stream, ph phase) {
	if s.timer != nil {
		s.timer.Stop()
		s.timer = nil
	}
	s.phase, s.expired = ph, false
	if ph == removing || !s.types[clusters].subscribed {
		return
	}
	var timer *time.Timer
	timer = time.AfterFunc(p.grace, func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		switch t := s.node.table; {
		case s.timer != timer: // the phase is over
		case s.phase == adding && t != nil && !s.offered(clusters, t):
			// An earlier answer is still on its way. Routes must not overtake the clusters that they need.
			timer.Reset(p.grace)
		default:
			s.expired = true
			p.flush(s)
		}
	})
	s.timer = timer
}

// flush sends whatever the stream may be sent now, and moves it on when it can.
func (p *Publisher) flush(s *stream) {
	t := s.node.table
	if t == nil {
		return
	}
	for {
		for k := range kinds {
			p.answer(s, k, t)
		}
		next, ok := s.next(t)
		if !ok {
			break
		}
		if s.expired {
			p.metrics.timeouts.Inc()
			p.log.Warn("Envoy did not answer in time, going on without it",
				zap.String("node", s.node.id), zap.String("phase", phaseName[s.phase]), zap.Duration("waited", p.grace))
		}
		p.enter(s, next)
	}
	p.observe(s.node)
}

// next says whether the stream's phase is over, and which one follows.
func (s *stream) next(t *table) (phase, bool) {
	switch s.phase {
	case adding:
		if s.typeURL != "" {
			return removing, true
		}
		if s.blocked(clusters, t) || s.blocked(endpoints, t) {
			return 0, false
		}
		if s.types[clusters].subscribed {
			return switching, s.expired || s.has(clusters, t) && s.hasEndpoints(t)
		}
		// Envoy asks for clusters before routes: this client never will.
		return switching, s.types[routes].subscribed
	case switching:
		if s.blocked(routes, t) {
			return 0, false
		}
		return removing, s.expired || s.types[routes].subscribed && s.has(routes, t)
	default:
		return 0, false
	}
}

// has says whether the client has the table's version of everything of the kind that it subscribed to.
func (s *stream) has(k kind, t *table) bool {
	st := &s.types[k]
	for name, r := range s.wanted(k, t) {
		if st.follows(name) && (st.held[name] != r.version || st.leaving(name)) {
			return false
		}
	}
	return true
}

// offered says whether the client has, or was sent, the table's version of everything of the kind that it subscribed to.
func (s *stream) offered(k kind, t *table) bool {
	st := &s.types[k]
	for name, r := range s.wanted(k, t) {
		if !st.follows(name) || st.held[name] == r.version && !st.leaving(name) {
			continue
		}
		if !st.onTheWay(func(a *answer) bool { return a.versions[name] == r.version }) {
			return false
		}
	}
	return true
}

// hasEndpoints says whether every cluster of the table has its endpoints: an Envoy subscribes to them only after it
// got the cluster, perhaps after it accepted it.
func (s *stream) hasEndpoints(t *table) bool {
	for _, name := range t.needed {
		if s.types[endpoints].held[name] != t.resources[endpoints][name].version {
			return false
		}
	}
	return true
}

// blocked says whether the client has rejected something that is still in the table.
func (s *stream) blocked(k kind, t *table) bool {
	for name, version := range s.types[k].rejected {
		if r := t.resources[k][name]; r != nil && r.version == version && s.types[k].held[name] != version {
			return true
		}
	}
	return false
}

// synced says whether the client has the table and nothing else.
func (s *stream) synced(t *table) bool {
	if s.phase != removing {
		return false
	}
	for k := range kinds {
		st := &s.types[k]
		if !st.subscribed {
			continue
		}
		if !s.has(k, t) {
			return false
		}
		for name := range st.held {
			if s.removable(k) && t.resources[k][name] == nil {
				return false
			}
		}
	}
	return true
}

// wanted is what the stream should have of a kind.
func (s *stream) wanted(k kind, t *table) map[string]*resource {
	switch {
	case k == runtimes && !s.ready:
		return readyOff
	case k == endpoints:
		return s.wantedEndpoints(t)
	default:
		return t.resources[k]
	}
}

// wantedEndpoints are the table's, and none for clusters that the client was sent and the table no longer has. An Envoy
// takes no further clusters before each one that it got has its endpoints, so that silence would hold up the table.
func (s *stream) wantedEndpoints(t *table) map[string]*resource {
	out, st, cs := t.resources[endpoints], &s.types[endpoints], &s.types[clusters]
	for name := range st.names {
		if t.resources[endpoints][name] != nil || st.held[name] != "" {
			continue
		}
		if cs.held[name] == "" && !cs.onTheWay(func(a *answer) bool { return a.versions[name] != "" }) {
			continue
		}
		if len(out) == len(t.resources[endpoints]) {
			out = maps.Clone(out)
		}
		out[name] = noEndpoints(name)
	}
	return out
}

// allowed says whether the stream may be given resources of the kind now.
func (s *stream) allowed(k kind) bool {
	return k != routes || s.phase != adding
}

// removable says whether resources of the kind are ever removed. Routes and the runtime never are: an Envoy without
// them would answer 404. Endpoints go with their cluster.
func (s *stream) removable(k kind) bool { return k == clusters }

func (st *typeState) follows(name string) bool {
	if st.wildcard {
		return true
	}
	_, ok := st.names[name]
	return ok
}

// onTheWay says whether such an answer was sent that the client has neither accepted nor rejected.
func (st *typeState) onTheWay(is func(*answer) bool) bool {
	if st.pushed != nil && is(st.pushed) {
		return true
	}
	for _, a := range st.nonces {
		if is(a) {
			return true
		}
	}
	return false
}

// leaving says whether the client was told to remove a resource, and may have done so by now.
func (st *typeState) leaving(name string) bool {
	return st.onTheWay(func(a *answer) bool {
		return slices.Contains(a.removed, name) || a.sent != nil && a.sent[name] == nil
	})
}

// subscribe notes what a watch is for.
func (st *typeState) subscribe(w *watch) {
	st.watch = w
	st.wildcard = w.sub.IsWildcard()
	st.names = maps.Clone(w.sub.SubscribedResources())
}

// accept notes that the client took an answer.
func (st *typeState) accept(a *answer) {
	if a.sent != nil { // the whole state of the world
		st.held, st.good = map[string]string{}, a.sent
	}
	for name, version := range a.versions {
		st.held[name] = version
		delete(st.rejected, name)
	}
	for _, name := range a.removed {
		delete(st.held, name)
		delete(st.rejected, name)
	}
	st.heldVersion, st.heldAt = a.version, time.Now()
	st.reason, st.rejectedVersion = "", ""
}

// observe measures how long a change took to be in use everywhere.
func (p *Publisher) observe(n *node) {
	if n.changed.IsZero() || len(n.streams) == 0 {
		return
	}
	for _, s := range n.streams {
		if !s.synced(n.table) {
			return
		}
	}
	p.metrics.convergence.Observe(time.Since(n.changed).Seconds())
	n.changed = time.Time{}
}
