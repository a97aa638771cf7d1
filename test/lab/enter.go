package lab

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// runVariable tells the second run of a program where its files go, and, by
// its parent's process id, that it is the second run.
const runVariable = "XDS_LAB_RUN"

// runRoot is the directory of everything that this run leaves behind, until
// the run ends. It is empty outside the lab.
var runRoot string

// Main is for TestMain: it runs the package's tests inside the lab and exits.
//
//	func TestMain(m *testing.M) { lab.Main(m, lab.Upgrade()...) }
func Main(m *testing.M, parts ...Part) {
	os.Exit(enter(parts, func(context.Context) int { return m.Run() }))
}

// Run calls f inside the lab, once the parts are there, and returns the exit
// code for os.Exit. The context ends on Ctrl-C and SIGTERM. Before Run returns
// every lab that f left open is closed.
func Run(f func(context.Context) error, parts ...Part) int {
	return enter(parts, func(ctx context.Context) int {
		if err := f(ctx); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		return 0
	})
}

func enter(parts []Part, f func(context.Context) int) int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if dir, ok := insideRun(); ok {
		runRoot = dir
		if err := setUpLoopback(); err != nil {
			fmt.Fprintln(os.Stderr, "lab: setting up the network namespace:", err)
			return 1
		}
		return inside(ctx, f)
	}
	code, err := outside(ctx, parts)
	if err != nil {
		fmt.Fprintln(os.Stderr, "lab:", err)
		return 1
	}
	return code
}

func insideRun() (dir string, ok bool) {
	parent, dir, _ := strings.Cut(os.Getenv(runVariable), ":")
	os.Unsetenv(runVariable)
	return dir, parent == fmt.Sprint(os.Getppid())
}

// outside gets the parts, runs this program again in namespaces of its own,
// and removes what is left of the run.
func outside(ctx context.Context, parts []Part) (code int, err error) {
	if err := Parts(ctx, os.Stderr, parts...); err != nil {
		return 0, err
	}
	if runRoot, err = os.MkdirTemp("", "xds-lab-"); err != nil {
		return 0, fmt.Errorf("making the directory of this run: %w", err)
	}
	if os.Getenv("XDS_LAB_KEEP") == "" {
		defer os.RemoveAll(runRoot)
	} else {
		fmt.Fprintln(os.Stderr, "lab: keeping", runRoot)
	}
	for _, p := range parts {
		if p.Name == XDSServer.Name {
			if err := buildXDSServer(ctx); err != nil {
				return 0, fmt.Errorf("building xds-server: %w", err)
			}
		}
	}

	self, err := os.Executable()
	if err != nil {
		return 0, err
	}
	cmd := exec.Command(self, os.Args[1:]...)
	cmd.Args[0] = os.Args[0]
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.Env = append(os.Environ(), fmt.Sprintf("%s=%d:%s", runVariable, os.Getpid(), runRoot))
	cmd.SysProcAttr = namespaces()
	if err := spawn(cmd); err != nil {
		return 0, fmt.Errorf("entering a network namespace (this needs root, or unprivileged user namespaces): %w", err)
	}
	// On Ctrl-C the terminal has signalled the child too; being told twice does
	// not hurt it, and a signal to this process alone has to reach it as well.
	over := context.AfterFunc(ctx, func() { cmd.Process.Signal(syscall.SIGTERM) })
	defer over()
	err = cmd.Wait()
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
		return max(exit.ExitCode(), 1), nil // -1 if it was killed
	}
	return 0, err
}

func namespaces() *syscall.SysProcAttr {
	attr := &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET}
	if os.Geteuid() != 0 {
		attr.Cloneflags |= syscall.CLONE_NEWUSER
		attr.UidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Geteuid(), Size: 1}}
		attr.GidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getegid(), Size: 1}}
	}
	return attr
}

// setUpLoopback brings the namespace's loopback interface up and gives it
// 10.0.0.1/16. Every address of a loopback interface's prefix is local, so each
// node has an address without another word.
func setUpLoopback() error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	set := func(request uint, name string, fill func(*unix.Ifreq) error) error {
		r, err := unix.NewIfreq(name)
		if err != nil {
			return err
		}
		if err := fill(r); err != nil {
			return err
		}
		return unix.IoctlIfreq(fd, request, r)
	}
	address := func(b ...byte) func(*unix.Ifreq) error {
		return func(r *unix.Ifreq) error { return r.SetInet4Addr(b) }
	}
	return errors.Join(
		set(unix.SIOCSIFFLAGS, "lo", func(r *unix.Ifreq) error {
			r.SetUint16(unix.IFF_UP | unix.IFF_RUNNING)
			return nil
		}),
		set(unix.SIOCSIFADDR, "lo:nodes", address(10, 0, 0, 1)),
		set(unix.SIOCSIFNETMASK, "lo:nodes", address(255, 255, 0, 0)),
	)
}

// inside calls f. A test binary knows nothing of the context: when it ends, the
// labs are closed and the program exits.
func inside(ctx context.Context, f func(context.Context) int) int {
	code := make(chan int, 1)
	go func() { code <- f(ctx) }()
	select {
	case c := <-code:
		closeAll()
		return c
	case <-ctx.Done():
	}
	if testing.Testing() {
		closeAll()
		return 130
	}
	c := <-code
	closeAll()
	return c
}

// open are the labs that were made and not closed, so that none survives the
// program that made it.
var open struct {
	sync.Mutex
	labs map[*Lab]bool
	made int
}

func closeAll() {
	open.Lock()
	labs := open.labs
	open.labs = nil
	open.Unlock()
	for l := range labs {
		l.Close()
	}
}

// Enter is the command that gives a shell of the machine's user a place in the
// lab's network, for as long as the lab runs.
func Enter() string {
	user := ""
	if dir, err := os.Readlink("/proc/self/ns/user"); err == nil {
		if parent, err := os.Readlink(filepath.Join("/proc", fmt.Sprint(os.Getppid()), "ns/user")); err == nil && dir != parent {
			user = "-U --preserve-credentials "
		}
	}
	return fmt.Sprintf("nsenter -t %d %s-n", os.Getpid(), user)
}
