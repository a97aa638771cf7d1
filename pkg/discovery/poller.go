package discovery

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"
	"golang.org/x/sync/errgroup"

	"xds-server/pkg/peers"
)

// Options say how servers are read.
type Options struct {
	// Source tells who the servers are.
	Source peers.Source
	// Credentials are shown to the servers, and say whom to believe.
	Credentials *Credentials
	// Interval is the time between two reads of a server, Timeout what one read may take as a whole, and Hold how long
	// the last view of a server counts that can't be read any more.
	Interval, Timeout, Hold time.Duration
	// Local is the name of the server that is read at LocalAddress, its own port, instead of its listed address.
	Local, LocalAddress string
	// OnChange gets the observations, sorted by name, whenever the list of servers, a server's readiness or what it
	// serves changed, but not when a view was merely confirmed. Calls come one after another; the next waits for it.
	OnChange func([]Observation)

	Log        *zap.Logger
	Registerer prometheus.Registerer

	// newReader and newDocuments are replaced in tests.
	newReader    func(address string) reader
	newDocuments func(address string) documentsReader
}

// reader reads one server. Its calls come one after another.
type reader interface {
	read(ctx context.Context) reading
	disconnect()
}

// Poller reads every server, each by itself: a server that is slow or broken costs nothing but its own view.
type Poller struct {
	o       Options
	metrics *metrics

	// What the owner, Run's own goroutine, last published.
	published atomic.Pointer[published]
	// refresh takes calls of Refresh to the owner, until stopped is closed.
	refresh chan refresh
	stopped chan struct{}
}

type published struct {
	observations []Observation
	// complete says that every server of some list was tried to the end once; pending are those that were not yet.
	complete bool
	pending  []string
	listed   bool
}

// NewPoller makes a poller; Run starts it.
func NewPoller(o Options) *Poller {
	if o.newReader == nil {
		o.newReader = func(address string) reader { return newClient(address, o.Timeout, o.Credentials) }
	}
	if o.newDocuments == nil {
		o.newDocuments = func(address string) documentsReader { return newDocumentsClient(address, o.Timeout, o.Credentials) }
	}
	if o.OnChange == nil {
		o.OnChange = func([]Observation) {}
	}
	p := &Poller{o: o, metrics: newMetrics(o.Registerer), refresh: make(chan refresh), stopped: make(chan struct{})}
	p.published.Store(&published{})
	return p
}

// Snapshot is what is known now, sorted by name. The caller may keep it.
func (p *Poller) Snapshot() []Observation {
	return slices.Clone(p.published.Load().observations)
}

// AllRead is nil once there was a list of servers and each of them was read, or found unreachable, at least once: from
// then on, whatever servers come later. The error says what is missing.
func (p *Poller) AllRead() error {
	switch s := p.published.Load(); {
	case s.complete:
		return nil
	case !s.listed:
		return errors.New("the list of kube-apiservers is not known yet")
	default:
		return fmt.Errorf("not read yet: %v", s.pending)
	}
}

// Run reads the servers until ctx ends. It runs once.
func (p *Poller) Run(ctx context.Context) error {
	defer close(p.stopped)
	g, ctx := errgroup.WithContext(ctx)
	lists := make(chan []peers.Server)
	g.Go(func() error {
		err := p.o.Source.Run(ctx, func(list []peers.Server) {
			select {
			case lists <- slices.Clone(list):
			case <-ctx.Done():
			}
		})
		if err != nil {
			return fmt.Errorf("finding the kube-apiservers: %w", err)
		}
		return nil
	})
	g.Go(func() error {
		p.own(ctx, lists)
		return nil
	})
	return g.Wait()
}

// owner is the state of a run. Only the goroutine that runs own touches it.
type owner struct {
	*Poller
	servers   map[string]*server
	results   chan result
	documents chan documentsResult
	workers   sync.WaitGroup
	listed    bool
	// complete says that every server of some list was tried once.
	complete bool
	settling awaited
}

// server is what is known of one server.
type server struct {
	observation Observation
	// address is where it is read, which is not its listed one if it is the local server.
	address string
	// listed is when the source began to list it, gone when it ceased to; zero while it does.
	listed, gone time.Time
	// tried says that one read came to its end, with whatever result.
	tried bool
	// lost counts the reads in a row that got no answer, and err is why the last one gave no view.
	lost int
	err  error
	// problem is the last thing that was logged of it, so that it is said once.
	problem string

	// worker numbers the goroutines that read it, since one that was stopped may still hand in a last reading.
	worker int
	stop   context.CancelFunc

	refreshes *refreshes
	waiting   []waiting

	otherDocuments
}

func newServer() *server {
	return &server{otherDocuments: otherDocuments{assigned: newAssigned()}}
}

// result is one reading as it comes from a worker.
type result struct {
	server  *server
	worker  int
	reading reading
	// asked is the last call of Refresh that the read began after.
	asked int64
}

func (p *Poller) own(ctx context.Context, lists <-chan []peers.Server) {
	o := &owner{Poller: p, servers: map[string]*server{}, results: make(chan result), documents: make(chan documentsResult)}
	ctx, cancel := context.WithCancel(ctx)
	defer o.workers.Wait()
	defer cancel()

	ends := time.NewTimer(time.Hour)
	defer ends.Stop()
	for {
		ends.Reset(o.untilNextEnd(time.Now()))
		changed, answer := false, func() {}
		select {
		case <-ctx.Done():
			return
		case list := <-lists:
			changed = o.list(ctx, list, time.Now())
		case r := <-o.results:
			changed, answer = o.result(r, time.Now())
		case r := <-o.documents:
			changed = o.documentsResult(r, time.Now())
		case r := <-o.refresh:
			o.refreshed(r)
			continue
		case <-ends.C:
		}
		// The order matters: a claim that a reading has just renewed must not end.
		if o.endClaims(time.Now()) {
			changed = true
		}
		if now := time.Now(); changed || o.settling.ends(now) {
			o.share(now)
			changed = true
		}
		o.publish(changed)
		answer()
	}
}

// list takes a new list: servers that are new on it are read from now on, and those no longer on it are gone, but are
// read on, since a server leaves the cluster's list as soon as it begins to stop.
func (o *owner) list(ctx context.Context, list []peers.Server, now time.Time) bool {
	changed := !o.listed
	o.listed = true
	names := map[string]bool{}
	for _, listed := range list {
		names[listed.Name] = true
		s := o.servers[listed.Name]
		if s == nil {
			s = newServer()
			o.servers[listed.Name] = s
		} else if s.observation.Server == listed && !s.observation.Gone {
			continue
		}
		changed = true
		if s.listed.IsZero() || s.observation.Gone {
			s.listed, s.observation.Expired = now, false
		}
		s.observation.Server, s.observation.Gone, s.gone = listed, false, time.Time{}
		address := listed.Address
		if listed.Name == o.o.Local && o.o.LocalAddress != "" {
			address = o.o.LocalAddress
		}
		if s.address != address {
			if s.stop != nil {
				s.stop()
			}
			s.address = address
			o.start(ctx, s)
		}
		o.o.Log.Info("a kube-apiserver is listed", zap.String("server", listed.Name), zap.String("address", listed.Address),
			zap.String("readAt", address), zap.Bool("direct", listed.Direct))
	}
	for name, s := range o.servers {
		if !names[name] && !s.observation.Gone {
			changed = true
			s.observation.Gone, s.gone = true, now
			o.o.Log.Info("a kube-apiserver is no longer listed, its last view counts until its hold ends",
				zap.String("server", name), zap.Duration("hold", o.o.Hold))
		}
	}
	return changed
}

// result takes what a read gave. The calls that wait for it are to be answered once it is published.
func (o *owner) result(r result, now time.Time) (changed bool, answer func()) {
	s, name := r.server, r.server.observation.Server.Name
	if o.servers[name] != s || s.worker != r.worker {
		return false, func() {} // forgotten, or read at another address, in the meantime
	}
	before := s.observation
	switch r.reading.ready {
	case isReady:
		s.observation.Ready, s.lost = true, 0
	case isUnready:
		s.observation.Ready, s.lost = false, 0
	case notSaid:
		// It lives, but won't talk with us: that is no reason to take it away from everybody else.
		s.lost = 0
	case noAnswer:
		// One lost answer may be the network's fault, and the next read comes after a fraction of a second.
		if s.lost++; s.lost > 1 {
			s.observation.Ready = false
		}
	}
	// A single lost answer is no result: the next read decides.
	s.tried = s.tried || s.lost != 1
	s.err = r.reading.err
	etagsBefore := s.viewETags
	if r.reading.view != nil {
		s.viewETags = r.reading.etags
		s.observation.View, s.observation.Read, s.observation.Expired = r.reading.view, now, false
	}
	o.metrics.observe(name, s.observation, r.reading)
	o.log(s, r.reading)
	changed = before.Ready != s.observation.Ready || before.View != s.observation.View || !maps.Equal(etagsBefore, s.viewETags)
	return changed, func() { s.answer(r.asked, r.reading.err) }
}

// log says what is new: a problem once, until it is another or over.
func (o *owner) log(s *server, r reading) {
	problem := ""
	if r.err != nil {
		problem = r.result
	}
	fields := []zap.Field{zap.String("server", s.observation.Server.Name), zap.String("address", s.address), zap.Bool("ready", s.observation.Ready)}
	switch {
	case problem != "" && problem != s.problem:
		o.o.Log.Warn("a kube-apiserver can't be read, its last view counts until its hold ends",
			append(fields, zap.String("result", r.result), zap.Error(r.err))...)
	case problem == "" && s.problem != "":
		o.o.Log.Info("a kube-apiserver can be read again", fields...)
	}
	if r.result == resultRead {
		o.o.Log.Info("a kube-apiserver's view is new", append(fields, zap.Int("groups", len(r.view.Groups)))...)
	}
	if r.first != "" {
		o.o.Log.Warn("entries of a kube-apiserver's discovery are left out",
			append(fields, zap.Any("entries", r.dropped), zap.String("first", r.first))...)
	}
	s.problem = problem
}

// claimEnd is when a server's claim ends if it is not read any more: its hold begins when it was last read, or when it
// was put on the list or left it, whichever came last.
func (o *owner) claimEnd(s *server) (end time.Time, ends bool) {
	since := s.observation.Read
	for _, t := range []time.Time{s.listed, s.gone} {
		if t.After(since) {
			since = t
		}
	}
	return since.Add(o.o.Hold), s.observation.Gone || !s.observation.Expired
}

// endClaims drops the views whose hold is over, and servers that are gone. Nothing is expected any more of a server that
// was not read for so long.
func (o *owner) endClaims(now time.Time) bool {
	changed := false
	for name, s := range o.servers {
		end, ends := o.claimEnd(s)
		if !ends || now.Before(end) {
			continue
		}
		changed = true
		if s.observation.Gone {
			s.stop()
			s.answer(0, errors.New("it is no longer listed"))
			delete(o.servers, name)
			o.metrics.forget(name)
			o.o.Log.Info("a kube-apiserver that is no longer listed is forgotten", zap.String("server", name))
			continue
		}
		s.observation.View, s.observation.Expired = nil, true
		o.o.Log.Warn("the hold of a kube-apiserver is over, it counts no more until it is read again", zap.String("server", name))
	}
	return changed
}

// untilNextEnd is how long it is to the next end of a claim, or of waiting for documents.
func (o *owner) untilNextEnd(now time.Time) time.Duration {
	next := time.Hour
	for _, s := range o.servers {
		if end, ends := o.claimEnd(s); ends {
			next = min(next, end.Sub(now))
		}
	}
	if o.settling.goes() {
		next = min(next, o.settling.until.Sub(now))
	}
	return max(next, 0)
}

func (o *owner) publish(changed bool) {
	next := &published{listed: o.listed}
	for _, name := range slices.Sorted(maps.Keys(o.servers)) {
		s := o.servers[name]
		next.observations = append(next.observations, s.observation)
		if !s.tried && !s.observation.Gone {
			next.pending = append(next.pending, name)
		}
	}
	if o.listed && len(next.pending) == 0 && !o.complete {
		// Whoever waits for the first read of every server is told, also where the last one gave nothing.
		o.complete, changed = true, true
	}
	next.complete = o.complete
	o.published.Store(next)
	if changed {
		o.o.OnChange(slices.Clone(next.observations))
	}
}
