package discovery

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
)

// firstRefresh is the least time between the beginnings of two reads of a server, however many ask for them.
const firstRefresh = 100 * time.Millisecond

var errStopped = errors.New("the kube-apiservers are no longer read")

// refresh is one call that waits.
type refresh struct {
	server string
	done   chan error
}

// refreshes are the calls that wait for a read of one server: the owner numbers them, and a worker says up to which
// number its read began after.
type refreshes struct {
	asked atomic.Int64
	wake  chan struct{}
}

// newRefreshes are those of a worker that comes after another one, if there was one.
func newRefreshes(before *refreshes) *refreshes {
	r := &refreshes{wake: make(chan struct{}, 1)}
	if before != nil {
		r.asked.Store(before.asked.Load())
	}
	return r
}

// begin is called where a read begins, and says for which calls it is.
func (r *refreshes) begin() int64 {
	select {
	case <-r.wake:
	default:
	}
	return r.asked.Load()
}

// next numbers a call.
func (r *refreshes) next() int64 {
	n := r.asked.Add(1)
	notify(r.wake)
	return n
}

// notify tells whoever waits for wake, now or next, once.
func notify(wake chan struct{}) {
	select {
	case wake <- struct{}{}:
	default:
	}
}

// waiting is a numbered call.
type waiting struct {
	number int64
	done   chan error
}

// Refresh reads a server's view now, unless it was confirmed less than age ago: it returns once a read that began after the
// call was taken and told to OnChange, if it gave something new, or fails if that read gave no view. Calls at the same time share reads, and a server that could
// not be read the last time is not read more often for it: the call fails at once. It must not be called in OnChange.
func (p *Poller) Refresh(ctx context.Context, server string, age time.Duration) error {
	for _, o := range p.published.Load().observations {
		if o.Server.Name == server && time.Since(o.Read) < age {
			return nil
		}
	}
	r := refresh{server, make(chan error, 1)}
	select {
	case p.refresh <- r:
	case <-p.stopped:
		return errStopped
	case <-ctx.Done():
		return fmt.Errorf("reading %s again: %w", server, ctx.Err())
	}
	select {
	case err := <-r.done:
		if err != nil {
			return fmt.Errorf("reading %s again: %w", server, err)
		}
		return nil
	case <-p.stopped:
		return errStopped
	case <-ctx.Done():
		return fmt.Errorf("reading %s again: %w", server, ctx.Err())
	}
}

// RefreshAll is Refresh of every server that is known, and fails if one of them fails.
func (p *Poller) RefreshAll(ctx context.Context, age time.Duration) error {
	var g errgroup.Group
	for _, o := range p.published.Load().observations {
		if !o.Expired {
			g.Go(func() error { return p.Refresh(ctx, o.Server.Name, age) })
		}
	}
	return g.Wait()
}

// refreshed takes a call.
func (o *owner) refreshed(r refresh) {
	s := o.servers[r.server]
	switch {
	case s == nil:
		r.done <- errors.New("there is no such kube-apiserver")
	case s.err != nil:
		r.done <- fmt.Errorf("it could not be read the last time: %w", s.err)
	default:
		s.waiting = append(s.waiting, waiting{s.refreshes.next(), r.done})
	}
}

// answer ends the calls that a read is for. If it gave no view it is for those too that came during it.
func (s *server) answer(asked int64, err error) {
	rest := s.waiting[:0]
	for _, w := range s.waiting {
		if err != nil || w.number <= asked {
			w.done <- err
		} else {
			rest = append(rest, w)
		}
	}
	s.waiting = rest
}
