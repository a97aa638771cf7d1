package streamer

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"time"
)

// LogLine is line n, counted from 1, of every log that the stand-in serves, without its newline. A reader can so tell
// a lost, repeated or torn line.
func LogLine(n int) string {
	return fmt.Sprintf("%09d the quick brown fox jumps over the lazy dog", n)
}

// logWriter writes logs as a container would have written them: endless, each reader's own from line 1.
type logWriter struct {
	interval time.Duration
}

func (l logWriter) write(w io.Writer, from, to int) error {
	b := bufio.NewWriterSize(w, 32<<10)
	for n := from; n <= to; n++ {
		fmt.Fprintln(b, LogLine(n)) //nolint:errcheck // Flush reports it
	}
	return b.Flush()
}

// follow writes a line at every interval, from line n on, until ctx ends or nobody reads any more.
func (l logWriter) follow(ctx context.Context, w io.Writer, flush func() error, n int) {
	tick := time.NewTicker(l.interval)
	defer tick.Stop()
	for ; ; n++ {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		if _, err := fmt.Fprintln(w, LogLine(n)); err != nil || flush() != nil {
			return
		}
	}
}
