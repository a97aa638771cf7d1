package discovery

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"xds-server/pkg/peers"
)

// world is a control plane without a network, in a synctest bubble: its clock moves only when everything waits.
type world struct {
	t       *testing.T
	list    chan []peers.Server
	poller  *Poller
	reg     *prometheus.Registry
	changes [][]Observation

	mu      sync.Mutex
	answers map[string]func(context.Context) reading // by address
	others  map[string]func(context.Context, assignment) documentsReading
	times   map[string][]time.Time
}

const (
	interval = 2 * time.Second
	hold     = time.Hour
)

// inWorld runs a poller in a bubble and ends it with the test.
func inWorld(t *testing.T, test func(*world)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		w := &world{t: t, list: make(chan []peers.Server), answers: map[string]func(context.Context) reading{}, others: map[string]func(context.Context, assignment) documentsReading{}, times: map[string][]time.Time{}, reg: prometheus.NewRegistry()}
		w.poller = NewPoller(Options{
			Source: w, Interval: interval, Timeout: 5 * time.Second, Hold: hold, Local: "local", LocalAddress: "localhost:1",
			OnChange: func(o []Observation) { w.changes = append(w.changes, o) }, Log: zap.NewNop(), Registerer: w.reg,
			newReader:    func(address string) reader { return fakeReader{w, address} },
			newDocuments: func(address string) documentsReader { return fakeDocuments{w, address} },
		})
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- w.poller.Run(ctx) }()
		synctest.Wait()
		test(w)
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run: %v", err)
		}
	})
}

// Run is the world's list of servers.
func (w *world) Run(ctx context.Context, emit func([]peers.Server)) error {
	for {
		select {
		case l := <-w.list:
			emit(l)
		case <-ctx.Done():
			return nil
		}
	}
}

type fakeReader struct {
	w       *world
	address string
}

func (r fakeReader) read(ctx context.Context) reading {
	r.w.mu.Lock()
	r.w.times[r.address] = append(r.w.times[r.address], time.Now())
	answer := r.w.answers[r.address]
	r.w.mu.Unlock()
	return answer(ctx)
}

func (r fakeReader) disconnect() {}

// fakeDocuments reads the documents of servers that have none, unless a test says otherwise.
type fakeDocuments struct {
	w       *world
	address string
}

func (r fakeDocuments) read(ctx context.Context, a assignment) documentsReading {
	r.w.mu.Lock()
	answer := r.w.others[r.address]
	r.w.mu.Unlock()
	if answer == nil {
		return documentsReading{result: resultUnreachable, failed: true}
	}
	return answer(ctx, a)
}

func (r fakeDocuments) disconnect() {}

func at(name string) peers.Server { return peers.Server{Name: name, Address: name + ":1"} }

// lists hands a list to the poller and waits until all has been done about it.
func (w *world) lists(names ...string) {
	var l []peers.Server
	for _, n := range names {
		l = append(l, at(n))
	}
	w.list <- l
	synctest.Wait()
}

// answer sets how an address answers from now on.
func (w *world) answer(address string, with func(context.Context) reading) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.answers[address] = with
}

// asked says when an address was read.
func (w *world) asked(address string) []time.Time {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.times[address])
}

func (w *world) pass(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

// serves makes a server answer with one view, always the same pointer, as the real reader does.
func (w *world) serves(name string, what ...string) {
	v := &View{Groups: groups(what...)}
	w.says(name, reading{result: resultConfirmed, ready: isReady, view: v})
}

func (w *world) says(name string, r reading) {
	w.answer(name+":1", func(context.Context) reading { return r })
}

func (w *world) hangs(name string) {
	w.answer(name+":1", func(ctx context.Context) reading {
		<-ctx.Done()
		return reading{result: resultUnreachable, err: ctx.Err()}
	})
}

var down = reading{result: resultUnreachable, err: errors.New("connection refused")}
var starting = reading{result: resultUnready, ready: isUnready, err: errors.New("starting")}

// show is a snapshot in short: "a ready [/v1/pods]; b gone []".
func (w *world) show() string {
	var out []string
	for _, o := range w.poller.Snapshot() {
		s := o.Server.Name
		if o.Ready {
			s += " ready"
		}
		if o.Gone {
			s += " gone"
		}
		view := "?"
		if o.View != nil {
			view = words(o.View.Groups)
		}
		out = append(out, s+" ["+view+"]")
	}
	return strings.Join(out, "; ")
}

func (w *world) expect(want string) {
	w.t.Helper()
	if got := w.show(); got != want {
		w.t.Errorf("got  %s\nwant %s", got, want)
	}
}

// metrics are the counters and gauges as name{label=value,...} value.
func (w *world) metrics() []string {
	families, err := w.reg.Gather()
	if err != nil {
		w.t.Fatal(err)
	}
	var out []string
	for _, f := range families {
		for _, m := range f.GetMetric() {
			var labels []string
			for _, l := range m.GetLabel() {
				labels = append(labels, l.GetName()+"="+l.GetValue())
			}
			v := m.GetCounter().GetValue() + m.GetGauge().GetValue()
			out = append(out, fmt.Sprintf("%s{%s} %.0f", f.GetName(), strings.Join(labels, ","), v))
		}
	}
	return out
}
