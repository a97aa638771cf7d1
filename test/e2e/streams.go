package e2e

import (
	"bufio"
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/remotecommand"
	utilexec "k8s.io/client-go/util/exec"

	"xds-server/test/lab"
	"xds-server/test/streamer"
)

// Streams tries everything that kubectl and other clients stream, at one front or server, as one user. Each of its
// methods says what it tried, how many requests that took, and what went wrong.
type Streams struct {
	Lab        *lab.Lab
	URL        string // the front, or a server directly
	Credential lab.Credential
	Namespace  string
	Pod        string // of a node that package streamer stands in for
	UserAgent  string // if set, by which an audit log tells these requests from others; not kubectl's
}

// StreamResult is the outcome of one method of Streams.
type StreamResult struct {
	Name     string
	Requests int
	Err      error
}

// bulk is how much a stream carries where it matters that much does: more than any buffer on the way.
const bulk = 8 << 20

// Upgrades are the two ways to upgrade a connection, by the value of their Upgrade header.
var Upgrades = []string{"websocket", "spdy/3.1"}

// AsUser runs commands with client-go's own executors, which do not fall back from a websocket to SPDY. Each command
// is authorized, so it also shows that the credential came through the upgrade.
func (s Streams) AsUser(ctx context.Context) []StreamResult {
	var results []StreamResult
	for _, upgrade := range Upgrades {
		r := StreamResult{Name: "exec over " + upgrade}
		for command, check := range map[string]func(stdout, stderr string, err error) error{
			"cat": func(string, string, error) error { return s.execBulk(ctx, upgrade) },
			"echo hello": func(stdout, _ string, err error) error {
				return want(err, stdout, "hello\n")
			},
			"warn hello": func(_, stderr string, err error) error {
				return want(err, stderr, "hello\n")
			},
			"exit 42": func(_, _ string, err error) error {
				var exit utilexec.CodeExitError
				if !errors.As(err, &exit) || exit.Code != 42 {
					return fmt.Errorf("ended with %w, not with exit code 42", err)
				}
				return nil
			},
		} {
			var stdout, stderr string
			var err error
			if command != "cat" {
				stdout, stderr, err = s.exec(ctx, upgrade, nil, strings.Fields(command)...)
			}
			r.Requests++
			if err := check(stdout, stderr, err); err != nil {
				r.Err = errors.Join(r.Err, fmt.Errorf("%s: %w", command, err))
			}
		}
		r.Requests++
		if err := s.terminal(ctx, upgrade); err != nil {
			r.Err = errors.Join(r.Err, fmt.Errorf("terminal: %w", err))
		}
		results = append(results, r)
	}
	return results
}

// Exec runs a short command over one kind of upgrade.
func (s Streams) Exec(ctx context.Context, upgrade string) error {
	stdout, _, err := s.exec(ctx, upgrade, strings.NewReader("hello"), "cat")
	return want(err, stdout, "hello")
}

// Refused runs a command as a user who may not, and is content only with the server's own refusal.
func (s Streams) Refused(ctx context.Context) []StreamResult {
	var results []StreamResult
	for _, upgrade := range Upgrades {
		r := StreamResult{Name: "exec refused over " + upgrade, Requests: 1}
		if _, _, err := s.exec(ctx, upgrade, nil, "echo", "hello"); err == nil || !strings.Contains(err.Error(), "forbidden") {
			r.Err = fmt.Errorf("got %w, not the server's refusal", err)
		}
		results = append(results, r)
	}
	return results
}

func (s Streams) execBulk(ctx context.Context, upgrade string) error {
	sent := randomBytes(bulk)
	got, _, err := s.exec(ctx, upgrade, bytes.NewReader(sent), "cat")
	if err != nil {
		return err
	}
	return sameBytes([]byte(got), sent)
}

// terminal changes the size of a terminal twice, and sees the command learn of it.
func (s Streams) terminal(ctx context.Context, upgrade string) error {
	stdin, closeStdin := io.Pipe()
	seen, stdout := io.Pipe()
	sizes := make(sizeQueue, 1)
	ended := make(chan error, 1)
	go func() {
		ended <- s.stream(ctx, upgrade, remotecommand.StreamOptions{Stdin: stdin, Stdout: stdout, Tty: true, TerminalSizeQueue: sizes}, "sizes")
		stdout.Close() //nolint:errcheck // never fails
	}()
	lines := bufio.NewScanner(seen)
	var err error
	for _, size := range []remotecommand.TerminalSize{{Width: 80, Height: 24}, {Width: 132, Height: 43}} {
		sizes <- size
		if !lines.Scan() {
			err = errors.New("it ended before it told its size")
			break
		}
		err = errors.Join(err, want(nil, lines.Text(), fmt.Sprintf("%dx%d", size.Width, size.Height)))
	}
	close(sizes)
	closeStdin.Close() //nolint:errcheck // never fails
	return errors.Join(err, <-ended)
}

// sizeQueue hands on a terminal's sizes as they come.
type sizeQueue chan remotecommand.TerminalSize

func (q sizeQueue) Next() *remotecommand.TerminalSize {
	size, ok := <-q
	if !ok {
		return nil
	}
	return &size
}

func (s Streams) exec(ctx context.Context, upgrade string, stdin io.Reader, command ...string) (stdout, stderr string, err error) {
	var outBuf, errBuf bytes.Buffer
	err = s.stream(ctx, upgrade, remotecommand.StreamOptions{Stdin: stdin, Stdout: &outBuf, Stderr: &errBuf}, command...)
	return outBuf.String(), errBuf.String(), err
}

func (s Streams) stream(ctx context.Context, upgrade string, opts remotecommand.StreamOptions, command ...string) error {
	query := url.Values{"container": {streamer.ContainerName}, "command": command}
	for name, asked := range map[string]bool{
		"stdin": opts.Stdin != nil, "stdout": opts.Stdout != nil, "stderr": opts.Stderr != nil, "tty": opts.Tty,
	} {
		query.Set(name, strconv.FormatBool(asked))
	}
	u, err := url.Parse(s.URL + s.podPath() + "/exec?" + query.Encode())
	if err != nil {
		return err
	}
	var executor remotecommand.Executor
	if upgrade == "websocket" {
		executor, err = remotecommand.NewWebSocketExecutor(s.config(), http.MethodGet, u.String())
	} else {
		executor, err = remotecommand.NewSPDYExecutor(s.config(), http.MethodPost, u)
	}
	if err != nil {
		return fmt.Errorf("make an executor for %s: %w", upgrade, err)
	}
	return executor.StreamWithContext(ctx, opts)
}

func (s Streams) podPath() string { return "/api/v1/namespaces/" + s.Namespace + "/pods/" + s.Pod }

// config is what client-go needs to be this user at this URL.
func (s Streams) config() *rest.Config {
	config := RESTConfig(s.Lab, s.URL, s.Credential)
	config.UserAgent = s.UserAgent
	return config
}

// RESTConfig is a client-go configuration for a URL and a credential of the lab.
func RESTConfig(l *lab.Lab, address string, c lab.Credential) *rest.Config {
	config := &rest.Config{Host: address, BearerToken: c.Token}
	config.CAData = l.PKI.CA.CertPEM()
	if c.Cert != nil {
		config.CertData, config.KeyData = c.Cert.CertPEM(), c.Cert.KeyPEM()
	}
	// The lab's network has no proxy, whatever the environment says.
	config.Proxy = func(*http.Request) (*url.URL, error) { return nil, nil }
	return config
}

func randomBytes(n int) []byte {
	b := make([]byte, n)
	rand.Read(b) //nolint:errcheck // never fails
	return b
}

func sameBytes(got, sent []byte) error {
	if !bytes.Equal(got, sent) {
		return fmt.Errorf("%d bytes came back that are not the %d bytes sent", len(got), len(sent))
	}
	return nil
}

func want(err error, got, wanted string) error {
	if err == nil && got != wanted {
		err = fmt.Errorf("got %q, want %q", got, wanted)
	}
	return err
}
