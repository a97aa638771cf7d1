package discovery

import (
	"context"
	"math/rand/v2"
	"time"
)

// Delays between failed reads of one server: the first is short, because a lost answer is often repeated with success,
// and the last is long enough that a dead server costs nothing.
const (
	firstBackoff = 200 * time.Millisecond
	lastBackoff  = 5 * time.Second
)

// start reads a server again and again, until its stop is called or ctx ends: its view, and beside it, so that neither
// waits for the other, its other documents.
func (o *owner) start(ctx context.Context, s *server) {
	ctx, s.stop = context.WithCancel(ctx)
	s.worker++
	worker := s.worker
	o.startDocuments(ctx, s)
	r := o.o.newReader(s.address)
	s.refreshes = newRefreshes(s.refreshes)
	refreshes := s.refreshes
	o.workers.Go(func() {
		defer r.disconnect()
		failures := 0
		for {
			began := time.Now()
			asked := refreshes.begin()
			reading := r.read(ctx)
			if ctx.Err() != nil {
				return
			}
			o.metrics.took(time.Since(began))
			select {
			case o.results <- result{s, worker, reading, asked}:
			case <-ctx.Done():
				return
			}
			if failed(reading.result) {
				failures++
			} else {
				failures = 0
			}
			wake := refreshes.wake
			if reading.view == nil {
				wake = nil // one that can't be read is not asked more often because someone wants it to be
			}
			if !sleep(ctx, delay(o.o.Interval, failures, rand.Float64()), wake, firstRefresh-time.Since(began)) {
				return
			}
		}
	})
}

// failed says whether a result is a reason to ask less often. A server that is starting is not: it answers, at first
// with 403 because it has not read its own authorization rules yet, and is wanted as soon as it is ready.
func failed(result string) bool {
	return result == resultUnreachable || result == resultInvalid || result == resultUnsupported
}

// delay is the time to the next read after some failures in a row, with jitter (0 to 1) so that many xds-servers do not
// ask in step.
func delay(interval time.Duration, failures int, jitter float64) time.Duration {
	d := interval
	if failures > 0 {
		d = min(firstBackoff<<min(failures-1, 10), max(lastBackoff, interval))
	}
	return time.Duration(float64(d) * (0.9 + 0.2*jitter))
}

// sleep waits for a time, or for a call to wake, but then no shorter than at least. It is false if ctx ends.
func sleep(ctx context.Context, d time.Duration, wake <-chan struct{}, least time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-wake:
	case <-ctx.Done():
		return false
	}
	t.Reset(max(0, min(least, d)))
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}
