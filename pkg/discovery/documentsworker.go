package discovery

import (
	"context"
	"math/rand/v2"
	"sync/atomic"
	"time"
)

// restFactor is how many times as long as a costly read no other one begins.
const restFactor = 5

// documentsReader reads a server's other documents. Its calls come one after another.
type documentsReader interface {
	read(ctx context.Context, a assignment) documentsReading
	disconnect()
}

// documentsResult is one reading as it comes from a worker.
type documentsResult struct {
	server  *server
	worker  int
	reading documentsReading
}

// assigned hands the owner's assignments to a worker: the last one counts.
type assigned struct {
	last atomic.Pointer[assignment]
	wake chan struct{}
}

func newAssigned() *assigned {
	a := &assigned{wake: make(chan struct{}, 1)}
	a.last.Store(&assignment{})
	return a
}

// set hands the next one over, at once if wake says so and else when the worker next looks.
func (a *assigned) set(next assignment, wake bool) {
	a.last.Store(&next)
	if wake {
		notify(a.wake)
	}
}

// take gives the last one, so that only a later one wakes.
func (a *assigned) take() assignment {
	select {
	case <-a.wake:
	default:
	}
	return *a.last.Load()
}

// startDocuments reads the other documents of a server while its assignment is active: at each interval, and at once
// where the assignment is a new one.
func (o *owner) startDocuments(ctx context.Context, s *server) {
	// One of its own, since a worker that was stopped may still take what wakes.
	last := s.assigned.last.Load()
	s.assigned = newAssigned()
	s.assigned.last.Store(last)
	worker, assigned := s.worker, s.assigned
	r := o.o.newDocuments(s.address)
	o.workers.Go(func() {
		defer r.disconnect()
		failures := 0
		for {
			began := time.Now()
			a := assigned.take()
			if !a.active {
				select {
				case <-assigned.wake:
					continue
				case <-ctx.Done():
					return
				}
			}
			reading := r.read(ctx, a)
			if ctx.Err() != nil {
				return
			}
			select {
			case o.documents <- documentsResult{s, worker, reading}:
			case <-ctx.Done():
				return
			}
			wake := assigned.wake
			if failures++; !reading.failed {
				failures = 0
			} else {
				wake = nil
			}
			// A server that has to put its documents together anew for each read is left alone for longer than that takes.
			rest := restFactor * reading.cost
			if !sleep(ctx, max(rest, delay(o.o.Interval, failures, rand.Float64())), wake, max(rest, firstRefresh-time.Since(began))) {
				return
			}
		}
	})
}
