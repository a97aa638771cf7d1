// Package suite is how end-to-end tests count: every scenario prints its number and how many requests it made, and the
// last line of a suite says how many passed.
package suite

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"xds-server/test/lab"
)

// timeout bounds one scenario.
const timeout = 4 * time.Minute

var results struct {
	sync.Mutex
	passed, failed int
}

// S is one scenario as it runs.
type S struct {
	*testing.T
	// Ctx ends with the scenario, or after a few minutes.
	Ctx      context.Context
	requests *atomic.Int64
}

// Scenario runs one scenario and prints what became of it. The number is native.md's or the issue's own, the name what
// it promises.
func Scenario(t *testing.T, number, name string, f func(*S)) {
	t.Helper()
	Long(t, timeout, number, name, f)
}

// Long is Scenario for one that takes longer than others may.
func Long(t *testing.T, limit time.Duration, number, name string, f func(*S)) {
	t.Helper()
	begin := time.Now()
	s := &S{requests: new(atomic.Int64)}
	ok := t.Run(number, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), limit)
		defer cancel()
		s.T, s.Ctx = t, ctx
		f(s)
	})
	results.Lock()
	defer results.Unlock()
	word := "ok"
	if ok {
		results.passed++
	} else {
		results.failed++
		word = "FAILED"
	}
	fmt.Printf("%-6s scenario %s: %s (%d requests, %.1f s)\n", word, number, name, s.requests.Load(), time.Since(begin).Seconds())
}

// Sub runs a part of a scenario under a name of its own; its requests count for the scenario.
func (s *S) Sub(name string, f func(*S)) {
	s.Helper()
	s.Run(name, func(t *testing.T) { f(&S{T: t, Ctx: s.Ctx, requests: s.requests}) })
}

// Count adds requests that were not made through Client.
func (s *S) Count(n int) { s.requests.Add(int64(n)) }

// Client is a client of the lab whose requests are counted.
func (s *S) Client(l *lab.Lab, c lab.Credential, p lab.Protocol) *http.Client {
	client := l.Client(c, p)
	client.Transport = counting{s, client.Transport}
	s.Cleanup(client.CloseIdleConnections)
	return client
}

type counting struct {
	s *S
	http.RoundTripper
}

func (c counting) RoundTrip(r *http.Request) (*http.Response, error) {
	c.s.Count(1)
	return c.RoundTripper.RoundTrip(r)
}

// CloseIdleConnections lets http.Client reach the transport's.
func (c counting) CloseIdleConnections() {
	if t, ok := c.RoundTripper.(interface{ CloseIdleConnections() }); ok {
		t.CloseIdleConnections()
	}
}

// Call makes one request, and fails the scenario if there is no answer.
func (s *S) Call(c *http.Client, method, url, body string, header http.Header) *lab.Answer {
	s.Helper()
	a, err := lab.Call(s.Ctx, c, method, url, body, header)
	if err != nil {
		s.Fatalf("%s %s: %v", method, url, err)
	}
	return a
}

// Want is Call with one status that the answer must have, and a part that its body must contain.
func (s *S) Want(c *http.Client, method, url, body string, status int, part string) *lab.Answer {
	s.Helper()
	a := s.Call(c, method, url, body, nil)
	if a.Status != status || !strings.Contains(string(a.Body), part) {
		s.Fatalf("%s %s answered %d, want %d with %q in: %.500s", method, url, a.Status, status, part, a.Body)
	}
	return a
}

// Main is a suite's TestMain: it runs the tests inside the lab and prints the last line.
func Main(m *testing.M, parts ...lab.Part) {
	os.Exit(lab.Run(func(context.Context) error {
		code := m.Run()
		results.Lock()
		defer results.Unlock()
		fmt.Printf("%d passed, %d failed, 0 skipped\n", results.passed, results.failed)
		if code != 0 {
			return fmt.Errorf("the suite failed")
		}
		return nil
	}, parts...))
}
