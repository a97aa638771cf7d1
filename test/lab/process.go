package lab

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"time"
)

// A Process is one program of the lab. It can be started again after it ended.
type Process struct {
	Name string
	// Log is the file that its output is appended to.
	Log string

	hostname string
	argv     func() []string
	ready    func(context.Context) error // one attempt

	mu  sync.Mutex
	run *run // the last one, nil before the first
}

// A run is one life of a program.
type run struct {
	cmd  *exec.Cmd
	done chan struct{} // closed when it has ended and was waited for
	err  error         // how it ended; set before done is closed
}

// Start starts the program. It does not wait until it is ready.
func (p *Process) Start() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.run.running() {
		return fmt.Errorf("%s runs already", p.Name)
	}
	if err := os.MkdirAll(filepath.Dir(p.Log), 0o755); err != nil {
		return fmt.Errorf("making the log directory of %s: %w", p.Name, err)
	}
	log, err := os.OpenFile(p.Log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return fmt.Errorf("opening the log of %s: %w", p.Name, err)
	}
	defer log.Close()

	argv := p.argv()
	if p.hostname != "" {
		argv = append([]string{"sh", "-c", `hostname "$0" && exec "$@"`, p.hostname}, argv...)
	}
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Dir = filepath.Dir(p.Log)
	cmd.Env = childEnv()
	cmd.Stdout, cmd.Stderr = log, log
	// A process group of its own, so that Ctrl-C reaches only this program,
	// which then ends the others in order.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if p.hostname != "" {
		cmd.SysProcAttr.Cloneflags = syscall.CLONE_NEWUTS
	}
	if err := spawn(cmd); err != nil {
		return fmt.Errorf("starting %s: %w", p.Name, err)
	}
	r := &run{cmd: cmd, done: make(chan struct{})}
	p.run = r
	go func() {
		r.err = cmd.Wait()
		close(r.done)
	}()
	return nil
}

func (r *run) running() bool {
	if r == nil {
		return false
	}
	select {
	case <-r.done:
		return false
	default:
		return true
	}
}

func (r *run) signal(s syscall.Signal) error {
	// os.Process knows whether the program was waited for, so that the process
	// id can not be somebody else's by now.
	if err := r.cmd.Process.Signal(s); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	return nil
}

func (p *Process) last() *run {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.run
}

// Running tells whether the program runs, or is paused.
func (p *Process) Running() bool { return p.last().running() }

// PID is the process id of the program that was started last, 0 if none was.
func (p *Process) PID() int {
	if r := p.last(); r != nil {
		return r.cmd.Process.Pid
	}
	return 0
}

// Done is closed when the program that was started last has ended. It is nil
// if none was.
func (p *Process) Done() <-chan struct{} {
	if r := p.last(); r != nil {
		return r.done
	}
	return nil
}

// Signal sends a signal to the program.
func (p *Process) Signal(s syscall.Signal) error {
	r := p.last()
	if !r.running() {
		return fmt.Errorf("%s does not run", p.Name)
	}
	if err := r.signal(s); err != nil {
		return fmt.Errorf("signalling %s: %w", p.Name, err)
	}
	return nil
}

// Pause stops the program where it stands, with its connections open.
func (p *Process) Pause() error { return p.Signal(syscall.SIGSTOP) }

// Resume lets a paused program continue.
func (p *Process) Resume() error { return p.Signal(syscall.SIGCONT) }

// Stop asks the program to end (SIGTERM) and waits until it has; when ctx ends
// first, the program is killed and the error says so. Stopping what does not
// run is no error.
func (p *Process) Stop(ctx context.Context) error {
	r := p.last()
	if !r.running() {
		return nil
	}
	// A paused program has to continue in order to end.
	if err := errors.Join(r.signal(syscall.SIGTERM), r.signal(syscall.SIGCONT)); err != nil {
		return fmt.Errorf("stopping %s: %w", p.Name, err)
	}
	select {
	case <-r.done:
		return nil
	case <-ctx.Done():
		p.Kill()
		return fmt.Errorf("%s did not end on SIGTERM: %w", p.Name, ctx.Err())
	}
}

// Kill ends the program at once (SIGKILL) and waits until it has ended.
func (p *Process) Kill() {
	if r := p.last(); r.running() && r.signal(syscall.SIGKILL) == nil {
		<-r.done
	}
}

// WaitReady waits until the program answers that it is ready, it ends, or ctx
// does; the error shows the end of its log.
func (p *Process) WaitReady(ctx context.Context) error {
	r := p.last()
	if r == nil {
		return fmt.Errorf("%s was never started", p.Name)
	}
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		attempt, cancel := context.WithTimeout(ctx, 2*time.Second)
		err := p.ready(attempt)
		cancel()
		if err == nil {
			return nil
		}
		select {
		case <-r.done:
			return fmt.Errorf("%s ended before it was ready: %w\n%s", p.Name, errors.Join(r.err, err), p.LogTail(15))
		case <-ctx.Done():
			return fmt.Errorf("%s is not ready: %w (last: %w)\n%s", p.Name, ctx.Err(), err, p.LogTail(15))
		case <-tick.C:
		}
	}
}

// LogTail is the last n lines of the program's log.
func (p *Process) LogTail(n int) string {
	b, err := os.ReadFile(p.Log)
	if err != nil {
		return err.Error()
	}
	return lastLines(string(b), n)
}
