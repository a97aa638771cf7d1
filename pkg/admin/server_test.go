package admin

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"go.uber.org/goleak"
	"go.uber.org/zap/zaptest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// start runs a server with these checks, and returns how to get a page from it.
func start(t *testing.T, ready ...Check) func(path string) (int, string) {
	t.Helper()
	s, err := New(Config{Address: "127.0.0.1:0", Ready: ready, Metrics: NewRegistry("v1.2.3"), Log: zaptest.NewLogger(t)})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- s.Run(ctx) }()
	client := &http.Client{Transport: &http.Transport{}}
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		client.CloseIdleConnections()
	})
	return func(path string) (int, string) {
		t.Helper()
		resp, err := client.Get("http://" + s.Addr().String() + path)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		body, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		return resp.StatusCode, string(body)
	}
}

func TestReadyzSaysWhichCheckFailsAndWhyUntilItHolds(t *testing.T) {
	why := errors.New("server b was not read yet")
	get := start(t,
		Check{Name: "views", Run: func() error { return why }},
		Check{Name: "listeners", Run: func() error { return nil }})

	code, body := get("/readyz")
	if code != http.StatusServiceUnavailable || !strings.Contains(body, "[-]views failed: server b was not read yet") {
		t.Errorf("not ready: got %d %q", code, body)
	}
	if code, body := get("/livez"); code != http.StatusOK || body != "ok" {
		t.Errorf("not ready is still alive: got %d %q", code, body)
	}
	why = nil
	if code, body := get("/readyz"); code != http.StatusOK || body != "ok" {
		t.Errorf("ready: got %d %q", code, body)
	}
	if _, body := get("/readyz?verbose"); body != "[+]views ok\n[+]listeners ok\nreadyz check passed\n" {
		t.Errorf("verbose: got %q", body)
	}
}

func TestMetricsSayWhatRunsAndPassPromlint(t *testing.T) {
	get := start(t)
	if _, body := get("/metrics"); !strings.Contains(body, `version="v1.2.3"`) {
		t.Errorf("no build info in %s", body)
	}
	problems, err := testutil.GatherAndLint(NewRegistry("v1.2.3"))
	if err != nil || len(problems) > 0 {
		t.Error(problems, err)
	}
}

func TestAnAddressInUseIsNamed(t *testing.T) {
	s, err := New(Config{Address: "127.0.0.1:0", Metrics: NewRegistry(""), Log: zaptest.NewLogger(t)})
	if err != nil {
		t.Fatal(err)
	}
	defer s.listener.Close()
	_, err = New(Config{Address: s.Addr().String(), Metrics: NewRegistry(""), Log: zaptest.NewLogger(t)})
	if err == nil || !strings.Contains(err.Error(), s.Addr().String()) || strings.Contains(err.Error(), "\n") {
		t.Errorf("got %v", err)
	}
}
