package integration

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"
)

func TestNothingOutlivesTheProgram(t *testing.T) {
	for _, c := range []struct {
		name   string
		signal syscall.Signal
		inner  bool // the program inside the namespace gets the signal
		files  bool // it has no chance to remove its files
	}{
		{name: "Ctrl-C", signal: syscall.SIGINT},
		{name: "SIGTERM", signal: syscall.SIGTERM},
		{name: "SIGKILL", signal: syscall.SIGKILL, files: true},
		{name: "SIGKILL inside", signal: syscall.SIGKILL, inner: true},
	} {
		t.Run(c.name, func(t *testing.T) {
			self, err := os.Executable()
			if err != nil {
				t.Fatal(err)
			}
			cmd := exec.Command(self)
			cmd.Env = append(os.Environ(), programVariable+"=1", "TMPDIR="+t.TempDir())
			cmd.Stderr = os.Stderr
			out, err := cmd.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { cmd.Process.Kill() })
			var inner, etcd int
			var dir string
			if _, err := fmt.Fscan(bufio.NewReader(out), &inner, &etcd, &dir); err != nil {
				t.Fatalf("the program did not start: %v", err)
			}
			namespace, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/net", inner))
			if err != nil {
				t.Fatal(err)
			}

			target := cmd.Process.Pid
			if c.inner {
				target = inner
			}
			if err := syscall.Kill(target, c.signal); err != nil {
				t.Fatal(err)
			}
			cmd.Wait()
			waitGone(t, inner)
			waitGone(t, etcd)
			if !c.files {
				wantGone(t, "the run's directory", filepath.Dir(dir))
			}
			if pids := inNamespace(t, namespace); len(pids) > 0 {
				t.Errorf("processes %v are still in the program's network namespace", pids)
			}
		})
	}
}

// waitGone waits until a process has ended: a process whose parent was killed
// is told by the kernel, which does not wait for it.
func waitGone(t *testing.T, pid int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for syscall.Kill(pid, 0) == nil && !zombie(pid) {
		select {
		case <-ctx.Done():
			t.Fatalf("process %d still runs", pid)
		case <-tick.C:
		}
	}
}

// zombie tells whether a process has ended and only waits to be reaped, which
// is up to the machine's first process.
func zombie(pid int) bool {
	var state string
	b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	fmt.Sscanf(string(b), "%d (%s %s", new(int), new(string), &state)
	return state == "Z"
}

func inNamespace(t *testing.T, namespace string) (pids []string) {
	t.Helper()
	links, err := filepath.Glob("/proc/[0-9]*/ns/net")
	if err != nil {
		t.Fatal(err)
	}
	for _, link := range links {
		if ns, err := os.Readlink(link); err == nil && ns == namespace {
			pids = append(pids, link)
		}
	}
	return pids
}
