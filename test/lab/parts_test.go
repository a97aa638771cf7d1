package lab

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
)

func TestAPartIsGotOnceAndKept(t *testing.T) {
	t.Setenv("XDS_LAB_CACHE", t.TempDir())
	var gets atomic.Int32
	part := Part{"tool", "1", func(_ context.Context, _ Part, file string) error {
		gets.Add(1)
		return os.WriteFile(file, []byte("tool"), 0o755)
	}}
	var programs sync.WaitGroup
	for range 8 {
		programs.Go(func() {
			if err := Parts(t.Context(), new(bytes.Buffer), part); err != nil {
				t.Error(err)
			}
		})
	}
	programs.Wait()
	if n := gets.Load(); n != 1 {
		t.Errorf("got %d times, want once", n)
	}
	if b, err := os.ReadFile(part.Path()); string(b) != "tool" {
		t.Errorf("the cache has %q (%v)", b, err)
	}
}

func TestAFailedPartLeavesNothingBehind(t *testing.T) {
	t.Setenv("XDS_LAB_CACHE", t.TempDir())
	broken := errors.New("no space left")
	part := Part{"tool", "1", func(_ context.Context, _ Part, file string) error {
		if err := os.WriteFile(file, []byte("half a to"), 0o755); err != nil {
			return err
		}
		return broken
	}}
	var progress bytes.Buffer
	err := Parts(t.Context(), &progress, part)
	if !errors.Is(err, broken) || !strings.Contains(err.Error(), "getting tool 1") {
		t.Errorf("the error does not say what failed and why: %v", err)
	}
	if strings.Contains(progress.String(), "got tool") {
		t.Errorf("a failure was told as a success:\n%s", &progress)
	}
	if left, _ := filepath.Glob(filepath.Join(filepath.Dir(part.Path()), "*")); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}

func TestWhatAKilledProgramLeftHalfDoneIsRemoved(t *testing.T) {
	t.Setenv("XDS_LAB_CACHE", t.TempDir())
	part := Part{"tool", "1", func(_ context.Context, _ Part, file string) error {
		return os.WriteFile(file, nil, 0o755)
	}}
	dir := filepath.Dir(part.Path())
	if err := os.MkdirAll(filepath.Join(dir, ".work-1"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := Parts(t.Context(), new(bytes.Buffer), part); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(dir, ".work-1")); !os.IsNotExist(err) {
		t.Errorf("the working directory is still there (%v)", err)
	}
}

func TestOnlyListedVersionsOfKubernetesAreBuilt(t *testing.T) {
	t.Setenv("XDS_LAB_CACHE", t.TempDir())
	err := Parts(t.Context(), new(bytes.Buffer), KubeAPIServer("1.2.3"))
	if err == nil || !strings.Contains(err.Error(), "1.37.2") {
		t.Errorf("want an error that lists the versions, got %v", err)
	}
}

func TestWaitingForTheCacheEndsWithTheContext(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lock")
	unlock, err := lockFile(t.Context(), path, func() { t.Error("nobody holds it") })
	if err != nil {
		t.Fatal(err)
	}
	defer unlock()
	ctx, cancel := context.WithCancel(t.Context())
	if _, err := lockFile(ctx, path, cancel); !errors.Is(err, context.Canceled) {
		t.Errorf("want to be told that the context ended, got %v", err)
	}
}
