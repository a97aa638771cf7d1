package lab

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func program(t *testing.T, script string) *Process {
	dir := t.TempDir()
	p := &Process{
		Name: "program",
		Log:  filepath.Join(dir, "log"),
		argv: func() []string { return []string{"sh", "-c", script} },
		ready: func(context.Context) error {
			_, err := os.Stat(filepath.Join(dir, "ready"))
			return err
		},
	}
	t.Cleanup(p.Kill)
	return p
}

func within(t *testing.T, d time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), d)
	t.Cleanup(cancel)
	return ctx
}

func TestAProgramThatEndsEarlyShowsItsLog(t *testing.T) {
	p := program(t, "echo the port is taken; exit 3")
	if err := p.Start(); err != nil {
		t.Fatal(err)
	}
	err := p.WaitReady(within(t, 10*time.Second))
	if err == nil || !strings.Contains(err.Error(), "the port is taken") || !strings.Contains(err.Error(), "exit status 3") {
		t.Errorf("the error does not show why the program ended: %v", err)
	}
}

func TestAPausedProgramCanBeStopped(t *testing.T) {
	p := program(t, `trap 'exit 0' TERM; touch ready; mkfifo fifo; while :; do read -r x < fifo; done`)
	if err := p.Start(); err != nil {
		t.Fatal(err)
	}
	if err := p.WaitReady(within(t, 10*time.Second)); err != nil {
		t.Fatal(err)
	}
	if err := p.Pause(); err != nil {
		t.Fatal(err)
	}
	if err := p.Stop(within(t, 10*time.Second)); err != nil {
		t.Error(err)
	}
	if p.Running() {
		t.Error("still running")
	}
}

func TestAProgramThatIgnoresSIGTERMIsKilled(t *testing.T) {
	p := program(t, `trap '' TERM; touch ready; mkfifo fifo; read -r x < fifo`)
	if err := p.Start(); err != nil {
		t.Fatal(err)
	}
	if err := p.WaitReady(within(t, 10*time.Second)); err != nil {
		t.Fatal(err)
	}
	err := p.Stop(within(t, 200*time.Millisecond))
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("want to be told that it had to be killed, got %v", err)
	}
	if p.Running() {
		t.Error("still running")
	}
}

func TestAProgramCanBeStartedAgain(t *testing.T) {
	p := program(t, "touch ready; mkfifo fifo; read -r x < fifo")
	for range 2 {
		if err := p.Start(); err != nil {
			t.Fatal(err)
		}
		if err := p.Start(); err == nil {
			t.Error("it was started twice at once")
		}
		if err := p.WaitReady(within(t, 10*time.Second)); err != nil {
			t.Fatal(err)
		}
		p.Kill()
	}
}

func TestProgramsSeeNoProxy(t *testing.T) {
	t.Setenv("HTTPS_PROXY", "http://192.0.2.1:1")
	t.Setenv("no_proxy", "x")
	t.Setenv("KUBECONFIG", "/elsewhere")
	for _, kv := range childEnv() {
		name, _, _ := strings.Cut(kv, "=")
		if strings.HasSuffix(strings.ToLower(name), "_proxy") || name == "KUBECONFIG" {
			t.Errorf("programs see %s", kv)
		}
	}
}

func TestALabOutsideItsNamespaceIsRefused(t *testing.T) {
	if _, err := New(Config{}); err == nil || !strings.Contains(err.Error(), "lab.Main") {
		t.Errorf("want an error that names the way in, got %v", err)
	}
}
