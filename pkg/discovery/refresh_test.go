package discovery

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"
)

// refreshing calls Refresh; its result comes in time.
func (w *world) refreshing(ctx context.Context, name string) chan error {
	done := make(chan error, 1)
	go func() { done <- w.poller.Refresh(ctx, name, 0) }()
	synctest.Wait()
	return done
}

func TestARefreshedViewIsTakenAndToldBeforeRefreshReturns(t *testing.T) {
	inWorld(t, func(w *world) {
		w.serves("a", "/v1/pods")
		w.lists("a")
		w.serves("a", "/v1/pods", "/v1/secrets")
		before := len(w.changes)
		began := time.Now()
		if err := w.poller.Refresh(w.t.Context(), "a", 0); err != nil {
			t.Fatal(err)
		}
		if took := time.Since(began); took > firstRefresh {
			t.Errorf("it took %s", took)
		}
		w.expect("a ready [/v1/pods /v1/secrets]")
		if len(w.changes) != before+1 {
			t.Errorf("%d changes were told", len(w.changes)-before)
		}
		// Without a change it is a confirmation.
		if err := w.poller.Refresh(w.t.Context(), "a", 0); err != nil {
			t.Error(err)
		}
	})
}

func TestAReadThatBeganBeforeTheCallIsNotEnough(t *testing.T) {
	inWorld(t, func(w *world) {
		w.serves("a", "/v1/pods")
		w.lists("a")
		release := make(chan string)
		w.answer("a:1", func(context.Context) reading {
			return reading{result: resultRead, ready: isReady, view: &View{Groups: groups(<-release)}}
		})
		w.pass(2 * interval) // a read is under way
		first := w.refreshing(w.t.Context(), "a")
		second := w.refreshing(w.t.Context(), "a")
		release <- "/v1/old"
		w.pass(firstRefresh)
		select {
		case err := <-first:
			t.Fatalf("returned before a read that began after it: %v", err)
		default:
		}
		reads := len(w.asked("a:1"))
		third := w.refreshing(w.t.Context(), "a")
		release <- "/v1/new"
		synctest.Wait()
		if err := <-first; err != nil {
			t.Error(err)
		}
		if err := <-second; err != nil {
			t.Error(err)
		}
		w.expect("a ready [/v1/new]")
		if n := len(w.asked("a:1")); n > reads+1 { // the one for the third call has begun
			t.Errorf("two calls took %d reads", n-reads+1)
		}
		w.pass(firstRefresh)
		release <- "/v1/newest"
		if err := <-third; err != nil {
			t.Error(err)
		}
		w.serves("a", "/v1/pods")
	})
}

func TestNobodyCanHaveAServerReadTooOften(t *testing.T) {
	inWorld(t, func(w *world) {
		w.serves("a", "/v1/pods")
		w.says("b", down)
		w.says("c", starting)
		w.lists("a", "b", "c")
		calls := func() (n, failed int) {
			for end := time.Now().Add(time.Minute); time.Now().Before(end); n++ {
				for _, name := range []string{"a", "b", "c"} {
					if err := w.poller.Refresh(w.t.Context(), name, 0); err != nil {
						failed++
					}
				}
			}
			return n, failed
		}
		n, failed := calls()
		if got := len(w.asked("a:1")); got > int(time.Minute/firstRefresh)+30 {
			t.Errorf("a was read %d times in a minute by %d calls", got, n)
		}
		if got := len(w.asked("b:1")); got > 20 {
			t.Errorf("b, which is down, was read %d times in a minute", got)
		}
		if got := len(w.asked("c:1")); got > 40 {
			t.Errorf("c, which is starting, was read %d times in a minute", got)
		}
		if failed != 2*n {
			t.Errorf("%d of %d calls failed for servers that can't be read", failed, 2*n)
		}
	})
}

func TestRefreshFailsAtOnceWhereThereIsNothingToRead(t *testing.T) {
	inWorld(t, func(w *world) {
		w.serves("a", "/v1/pods")
		w.lists("a")
		if err := w.poller.Refresh(w.t.Context(), "x", 0); err == nil || !strings.Contains(err.Error(), "x") {
			t.Errorf("an unknown server: %v", err)
		}
		w.hangs("a")
		ctx, cancel := context.WithCancel(w.t.Context())
		done := w.refreshing(ctx, "a")
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Errorf("a caller that went away: %v", err)
		}
		w.says("a", down)
	})
	inWorld(t, func(w *world) {
		w.serves("a", "/v1/pods")
		w.lists("a")
		w.says("a", down)
		if err := w.poller.Refresh(w.t.Context(), "a", 0); err == nil || !strings.Contains(err.Error(), "connection refused") {
			t.Errorf("a read that failed: %v", err)
		}
	})
}

func TestRefreshEndsWithTheRun(t *testing.T) {
	p := NewPoller(Options{Source: failing{}, Log: zap.NewNop(), Registerer: prometheus.NewRegistry()})
	if err := p.Run(t.Context()); err == nil {
		t.Fatal("the run did not end")
	}
	if err := p.Refresh(t.Context(), "a", 0); !errors.Is(err, errStopped) {
		t.Errorf("got %v", err)
	}
}
