package e2e

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os/exec"
	"regexp"
	"strings"
	"time"

	"xds-server/test/streamer"
)

// Kubectl streams with a real kubectl of a version, once with websockets and once with SPDY: logs -f, exec with and
// without stdin, attach, and port-forward.
func (s Streams) Kubectl(ctx context.Context, version string) []StreamResult {
	kubeconfig, err := s.Lab.Kubeconfig(s.URL, s.Credential)
	if err != nil {
		return []StreamResult{{Name: "kubectl " + version, Err: err}}
	}
	var results []StreamResult
	for _, upgrade := range Upgrades {
		k := kubectl{Streams: s, version: version, kubeconfig: kubeconfig, websockets: upgrade == "websocket"}
		for _, check := range []struct {
			name string
			// requests is how many API requests of interest the check makes.
			requests int
			run      func(context.Context) error
		}{
			{"exec with stdin", 1, k.execStdin},
			{"exec's output and exit code", 3, k.execOutput},
			{"attach with stdin", 1, k.attach},
			{"port-forward", 2, k.portForward},
		} {
			results = append(results, StreamResult{
				Name:     fmt.Sprintf("kubectl %s %s over %s", version, check.name, upgrade),
				Requests: check.requests, Err: check.run(ctx),
			})
		}
	}
	k := kubectl{Streams: s, version: version, kubeconfig: kubeconfig}
	return append(results, StreamResult{Name: "kubectl " + version + " logs -f", Requests: 1, Err: k.logsFollow(ctx)})
}

type kubectl struct {
	Streams
	version    string
	kubeconfig string
	websockets bool
}

// run runs kubectl to its end. A websocket that failed, after which kubectl quietly tries SPDY, counts as an error.
func (k kubectl) run(ctx context.Context, stdin io.Reader, args ...string) (stdout []byte, stderr string, err error) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	cmd := k.command(ctx, args...)
	var outBuf, errBuf bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = stdin, &outBuf, &errBuf
	err = cmd.Run()
	return outBuf.Bytes(), errBuf.String(), errors.Join(err, fellBack(errBuf.String()))
}

func (k kubectl) command(ctx context.Context, args ...string) *exec.Cmd {
	// At this verbosity kubectl tells if it falls back.
	cmd := k.Lab.Kubectl(ctx, k.version, k.kubeconfig, append([]string{"--namespace=" + k.Namespace, "-v=4"}, args...)...)
	for _, name := range []string{"KUBECTL_REMOTE_COMMAND_WEBSOCKETS", "KUBECTL_PORT_FORWARD_WEBSOCKETS"} {
		cmd.Env = append(cmd.Env, fmt.Sprintf("%s=%t", name, k.websockets))
	}
	return cmd
}

func fellBack(stderr string) error {
	for line := range strings.Lines(stderr) {
		if strings.Contains(line, "fallback") {
			return fmt.Errorf("the websocket failed, and kubectl fell back to SPDY: %s", line)
		}
	}
	return nil
}

func (k kubectl) execStdin(ctx context.Context) error {
	sent := randomBytes(bulk)
	got, stderr, err := k.run(ctx, bytes.NewReader(sent), "exec", "-i", k.Pod, "--", "cat")
	if err != nil {
		return fmt.Errorf("%w: %s", err, stderr)
	}
	return sameBytes(got, sent)
}

func (k kubectl) execOutput(ctx context.Context) error {
	const lines = 200_000
	got, stderr, err := k.run(ctx, nil, "exec", k.Pod, "--", "seq", fmt.Sprint(lines))
	if err != nil {
		return fmt.Errorf("seq: %w: %s", err, stderr)
	}
	if n := bytes.Count(got, []byte("\n")); n != lines || !bytes.HasSuffix(got, fmt.Appendf(nil, "\n%d\n", lines)) {
		return fmt.Errorf("seq: got %d lines, want %d", n, lines)
	}
	if _, stderr, err = k.run(ctx, nil, "exec", k.Pod, "--", "warn", "to", "stderr"); err != nil {
		return fmt.Errorf("warn: %w: %s", err, stderr)
	}
	if !strings.Contains(stderr, "to stderr\n") {
		return fmt.Errorf("warn: stderr is %q", stderr)
	}
	_, stderr, err = k.run(ctx, nil, "exec", k.Pod, "--", "exit", "42")
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.ExitCode() != 42 {
		return fmt.Errorf("exit 42: ended with %w: %s", err, stderr)
	}
	return fellBack(stderr)
}

func (k kubectl) attach(ctx context.Context) error {
	got, stderr, err := k.run(ctx, strings.NewReader("hello\n"), "attach", "-i", "--quiet", k.Pod)
	if err != nil {
		return fmt.Errorf("%w: %s", err, stderr)
	}
	return want(nil, string(got), fmt.Sprintf("attached to %s/%s/%s\nhello\n", k.Namespace, k.Pod, streamer.ContainerName))
}

// logsFollow reads lines as they are written. A proxy that buffers would hold them back.
func (k kubectl) logsFollow(ctx context.Context) (err error) {
	const before, after = 3, 60 // lines that are there already, and lines to come
	ctx, cancel := context.WithCancel(ctx)
	stdout, stop, err := start(k.command(ctx, "logs", "-f", fmt.Sprintf("--tail=%d", before), k.Pod), cancel)
	if err != nil {
		return err
	}
	defer stop()
	// Lines come every 50 ms; kubectl itself needs a moment to start.
	late := time.AfterFunc(20*time.Second, cancel)
	defer late.Stop()
	lines := bufio.NewScanner(stdout)
	for n := 1; n <= before+after; n++ {
		if !lines.Scan() {
			return fmt.Errorf("no line %d: %w", n, errors.Join(lines.Err(), context.Cause(ctx)))
		}
		if err := want(nil, lines.Text(), streamer.LogLine(n)); err != nil {
			return fmt.Errorf("line %d: %w", n, err)
		}
		late.Reset(2 * time.Second)
	}
	return nil
}

var forwardingFrom = regexp.MustCompile(`Forwarding from (127\.0\.0\.1:\d+)`)

// portForward sends some MB and reads them back, over two connections at once.
func (k kubectl) portForward(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	cmd := k.command(ctx, "port-forward", "--address=127.0.0.1", "pod/"+k.Pod, fmt.Sprintf(":%d", streamer.EchoPort))
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	stdout, stop, err := start(cmd, cancel)
	if err != nil {
		return err
	}
	err = echoTwice(stdout)
	stop()
	if err != nil {
		return fmt.Errorf("%w: %s", err, stderr.String())
	}
	return fellBack(stderr.String())
}

func echoTwice(stdout io.Reader) error {
	lines := bufio.NewScanner(stdout)
	var address string
	for address == "" && lines.Scan() {
		if m := forwardingFrom.FindStringSubmatch(lines.Text()); m != nil {
			address = m[1]
		}
	}
	if address == "" {
		return errors.New("kubectl forwards no port")
	}
	go io.Copy(io.Discard, stdout) //nolint:errcheck // what else it says is of no interest
	results := make(chan error, 2)
	for range cap(results) {
		go func() { results <- echo(address) }()
	}
	return errors.Join(<-results, <-results)
}

// echo sends bytes to an echo server and reads them back, to the end.
func echo(address string) error {
	conn, err := net.Dial("tcp", address)
	if err != nil {
		return err
	}
	defer conn.Close()                                 //nolint:errcheck // read to its end
	conn.SetDeadline(time.Now().Add(40 * time.Second)) //nolint:errcheck // it is a TCP connection
	sent := randomBytes(bulk)
	wrote := make(chan error, 1)
	go func() {
		_, err := conn.Write(sent)
		wrote <- errors.Join(err, conn.(*net.TCPConn).CloseWrite())
	}()
	got, err := io.ReadAll(conn)
	if err := errors.Join(err, <-wrote); err != nil {
		return fmt.Errorf("echo of %d bytes: %w", len(sent), err)
	}
	return sameBytes(got, sent)
}

// start starts a command whose output is read while it runs, and which ends when stop has cancelled its context.
func start(cmd *exec.Cmd, cancel context.CancelFunc) (stdout io.Reader, stop func(), err error) {
	r, w := io.Pipe()
	cmd.Stdout = w
	if err := cmd.Start(); err != nil {
		cancel()
		return nil, nil, err
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		cmd.Wait() //nolint:errcheck // killed, as a rule
		w.Close()  //nolint:errcheck // never fails
	}()
	return r, func() {
		cancel()
		r.Close() //nolint:errcheck // never fails
		<-ended
	}, nil
}
