package documents

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"
)

// works are expensive contents that are kept from one Set to the next, by a key that says what is in them. Each is made
// once, in the background, one at a time; only the few that were used last are kept.
type works struct {
	most int
	turn chan struct{}

	lock sync.Mutex
	kept []*work // the one that was used last stands last
}

// work is one content, once done is closed: then content, err or both are there. err alone says that it can't be made.
type work struct {
	key     string
	done    chan struct{}
	dropped chan struct{}
	content *content
	err     error
}

func newWorks(most int) *works { return &works{most: most, turn: make(chan struct{}, 1)} }

// get returns the work of a key, which it begins unless it is known.
func (w *works) get(key string, make func() (*content, error)) *work {
	w.lock.Lock()
	defer w.lock.Unlock()
	if i := slices.IndexFunc(w.kept, func(t *work) bool { return t.key == key }); i >= 0 {
		t := w.kept[i]
		w.kept = append(slices.Delete(w.kept, i, i+1), t)
		return t
	}
	t := newWork(key)
	w.kept = append(w.kept, t)
	if len(w.kept) > w.most {
		close(w.kept[0].dropped)
		w.kept = slices.Delete(w.kept, 0, 1)
	}
	go w.do(t, make)
	return t
}

func newWork(key string) *work {
	return &work{key: key, done: make(chan struct{}), dropped: make(chan struct{})}
}

var errDropped = errors.New("other documents were needed first")

func (w *works) do(t *work, make func() (*content, error)) {
	defer close(t.done)
	select {
	case w.turn <- struct{}{}:
		defer func() { <-w.turn }()
	case <-t.dropped:
		t.err = errDropped
		return
	}
	select {
	case <-t.dropped:
		t.err = errDropped
		return
	default:
	}
	t.err = guarded(func() (err error) {
		t.content, err = make()
		return err
	})
}

// failed says that asking again gives no more.
func (t *work) failed() bool {
	select {
	case <-t.done:
		return t.content == nil && !errors.Is(t.err, errDropped)
	default:
		return false
	}
}

// wait returns what was made, or nil if that takes longer, or failed.
func (t *work) wait(ctx context.Context, long time.Duration) *content {
	timeout := time.NewTimer(long)
	defer timeout.Stop()
	select {
	case <-t.done:
		return t.content
	case <-timeout.C:
	case <-ctx.Done():
	}
	return nil
}

// guarded calls what reads others' documents with parsers that are made for right ones: one that makes them panic is as
// wrong as any other.
func guarded(f func() error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("the document made its reader panic: %v", p)
		}
	}()
	return f()
}
