package streamer

import (
	"bufio"
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
	"k8s.io/apimachinery/pkg/util/httpstream" //nolint:staticcheck // client-go still has its types
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/portforward"
	"k8s.io/client-go/tools/remotecommand"
	"k8s.io/client-go/transport/spdy"
	utilexec "k8s.io/client-go/util/exec"
)

// Protocols that kubectl and client-go speak for exec and attach, each without falling back to the other.
var executors = map[string]func(*rest.Config, *url.URL) (remotecommand.Executor, error){
	"spdy/3.1": func(c *rest.Config, u *url.URL) (remotecommand.Executor, error) {
		return remotecommand.NewSPDYExecutor(c, http.MethodPost, u)
	},
	"websocket": func(c *rest.Config, u *url.URL) (remotecommand.Executor, error) {
		return remotecommand.NewWebSocketExecutor(c, http.MethodGet, u.String())
	},
}

func TestExecCopiesStdinToStdoutByteForByte(t *testing.T) {
	sent := make([]byte, 4<<20)
	rand.Read(sent) //nolint:errcheck // never fails
	forEachProtocol(t, func(t *testing.T, c *client) {
		got, _, err := c.run(t, remotecommand.StreamOptions{Stdin: bytes.NewReader(sent)}, "exec", "command=cat&input=1&output=1")
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal([]byte(got), sent) {
			t.Errorf("got %d bytes that are not the %d bytes sent", len(got), len(sent))
		}
	})
}

func TestExecKeepsStdoutAndStderrApart(t *testing.T) {
	forEachProtocol(t, func(t *testing.T, c *client) {
		for command, want := range map[string][2]string{
			"command=echo&command=to&command=stdout": {"to stdout\n", ""},
			"command=warn&command=to&command=stderr": {"", "to stderr\n"},
			"command=seq&command=3":                  {"1\n2\n3\n", ""},
		} {
			stdout, stderr, err := c.run(t, remotecommand.StreamOptions{}, "exec", command+"&output=1&error=1")
			if err != nil || [2]string{stdout, stderr} != want {
				t.Errorf("%s: stdout %q, stderr %q, error %v; want %q", command, stdout, stderr, err, want)
			}
		}
	})
}

func TestExecTellsTheExitCode(t *testing.T) {
	forEachProtocol(t, func(t *testing.T, c *client) {
		for command, want := range map[string]int{"command=exit&command=42": 42, "command=nothing-like-this": 127} {
			_, _, err := c.run(t, remotecommand.StreamOptions{}, "exec", command+"&output=1&error=1")
			var exit utilexec.CodeExitError
			if !errors.As(err, &exit) || exit.Code != want {
				t.Errorf("%s: got %v, want exit code %d", command, err, want)
			}
		}
	})
}

func TestExecLearnsEachSizeOfTheTerminal(t *testing.T) {
	forEachProtocol(t, func(t *testing.T, c *client) {
		stdin, closeStdin := io.Pipe()
		sizes := make(sizeQueue, 2)
		seen, stdout := io.Pipe()
		result := make(chan error, 1)
		go func() {
			_, _, err := c.run(t, remotecommand.StreamOptions{Stdin: stdin, Stdout: stdout, Tty: true, TerminalSizeQueue: sizes},
				"exec", "command=sizes&input=1&output=1&tty=1")
			result <- err
		}()
		lines := bufio.NewScanner(seen)
		for _, size := range []remotecommand.TerminalSize{{Width: 80, Height: 24}, {Width: 132, Height: 43}} {
			sizes <- size
			want := fmt.Sprintf("%dx%d", size.Width, size.Height)
			if !lines.Scan() || lines.Text() != want {
				t.Fatalf("the command saw %q, want %q", lines.Text(), want)
			}
		}
		close(sizes)
		closeStdin.Close() //nolint:errcheck // always nil
		if err := <-result; err != nil {
			t.Error(err)
		}
	})
}

func TestAttachJoinsTheRunningProcess(t *testing.T) {
	forEachProtocol(t, func(t *testing.T, c *client) {
		got, _, err := c.run(t, remotecommand.StreamOptions{Stdin: strings.NewReader("hello\n")}, "attach", "input=1&output=1")
		if want := "attached to default/web/main\nhello\n"; err != nil || got != want {
			t.Errorf("got %q, error %v; want %q", got, err, want)
		}
	})
}

func TestAttachWithoutStdinPrintsUntilTheClientLeaves(t *testing.T) {
	forEachProtocol(t, func(t *testing.T, c *client) {
		ctx, leave := context.WithCancel(t.Context())
		c.ctx = ctx
		seen, stdout := io.Pipe()
		result := make(chan error, 1)
		go func() {
			_, _, err := c.run(t, remotecommand.StreamOptions{Stdout: stdout}, "attach", "output=1")
			result <- err
		}()
		lines := bufio.NewScanner(seen)
		for _, want := range []string{"attached to default/web/main", LogLine(1), LogLine(2)} {
			if !lines.Scan() || lines.Text() != want {
				t.Fatalf("read %q, want %q", lines.Text(), want)
			}
		}
		leave()
		seen.Close() //nolint:errcheck // always nil
		if err := <-result; err == nil {
			t.Error("attach ended well though its client left in the middle")
		}
	})
}

func TestPortForwardReachesThePodsPort(t *testing.T) {
	sent := make([]byte, 4<<20)
	rand.Read(sent) //nolint:errcheck // never fails
	s, config := start(t, Options{})
	u := address(s, "/portForward/default/web", "")
	transport, upgrader, err := spdy.RoundTripperFor(config)
	if err != nil {
		t.Fatal(err)
	}
	tunnel, err := portforward.NewSPDYOverWebsocketDialer(u, config)
	if err != nil {
		t.Fatal(err)
	}
	for name, dial := range map[string]func(port int) *portforward.PortForwarder{
		"spdy/3.1": func(port int) *portforward.PortForwarder {
			return forwarder(t, spdy.NewDialer(upgrader, &http.Client{Transport: transport}, http.MethodPost, u), port)
		},
		"websocket": func(port int) *portforward.PortForwarder { return forwarder(t, tunnel, port) },
	} {
		t.Run(name, func(t *testing.T) {
			conn := forward(t, dial(EchoPort))
			go func() {
				conn.Write(sent)                 //nolint:errcheck // the comparison shows it
				conn.(*net.TCPConn).CloseWrite() //nolint:errcheck // likewise
			}()
			got, err := io.ReadAll(conn)
			if err != nil || !bytes.Equal(got, sent) {
				t.Errorf("got %d bytes (error %v) that are not the %d bytes sent", len(got), err, len(sent))
			}
			if n := s.Requests()[Request{Verb: "portForward", Upgrade: name}]; n != 1 {
				t.Errorf("%d requests arrived as %s, want 1", n, name)
			}
			if got, _ := io.ReadAll(forward(t, dial(EchoPort+1))); len(got) != 0 {
				t.Errorf("a port at which nothing listens answered %q", got)
			}
		})
	}
}

func TestLogsAreFollowedLineByLine(t *testing.T) {
	s, config := start(t, Options{})
	body := get(t, config, address(s, "/containerLogs/default/web/main", "follow=true&tailLines=1"))
	lines := bufio.NewScanner(body)
	for n := 1; n <= 20; n++ {
		if !lines.Scan() || lines.Text() != LogLine(n) {
			t.Fatalf("line %d is %q, want %q", n, lines.Text(), LogLine(n))
		}
	}
	s.Close()
	for lines.Scan() { //nolint:revive // lines on their way
	}
	if lines.Err() == nil {
		t.Error("a log that was cut looks as if it had ended well")
	}
}

func TestLogsOfManyLinesEnd(t *testing.T) {
	s, config := start(t, Options{})
	const lines = 50_000
	body := get(t, config, address(s, "/containerLogs/default/web/main", fmt.Sprintf("tailLines=%d", lines)))
	got, err := io.ReadAll(body)
	if err != nil {
		t.Fatal(err)
	}
	if n := bytes.Count(got, []byte("\n")); n != lines || !bytes.HasSuffix(got, []byte(LogLine(lines)+"\n")) {
		t.Errorf("got %d lines, want %d", n, lines)
	}
}

func TestLogOptionsThatTheStandInCannotDoAreRefused(t *testing.T) {
	s, config := start(t, Options{})
	for _, query := range []string{"timestamps=true", "sinceSeconds=5", "tailLines=x", "previous=true"} {
		response := send(t, config, address(s, "/containerLogs/default/web/main", query))
		if response.StatusCode != http.StatusBadRequest {
			t.Errorf("%s: got %s, want 400", query, response.Status)
		}
	}
}

func TestOnlyAHolderOfAClientCertificateIsServedIfACAIsGiven(t *testing.T) {
	pki := newPKI(t)
	s, config := start(t, Options{ClientCAs: pki.pool})
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		t.Fatal(err)
	}
	defer client.CloseIdleConnections()
	u := address(s, "/containerLogs/default/web/main", "").String()
	if response, err := client.Get(u); err == nil {
		t.Errorf("a caller without a certificate got %s", response.Status)
		response.Body.Close() //nolint:errcheck // not read
	}
	config.CertData, config.KeyData = pki.pem(t, pki.issue(t, "kube-apiserver-kubelet-client"))
	if response := send(t, config, address(s, "/containerLogs/default/web/main", "")); response.StatusCode != http.StatusOK {
		t.Errorf("a caller with a certificate got %s", response.Status)
	}
}

// client runs commands against one stand-in by one protocol.
type client struct {
	ctx    context.Context
	server *Server
	dial   func(*url.URL) (remotecommand.Executor, error)
}

func forEachProtocol(t *testing.T, test func(*testing.T, *client)) {
	for name, executor := range executors {
		t.Run(name, func(t *testing.T) {
			s, config := start(t, Options{LogInterval: time.Millisecond})
			test(t, &client{ctx: t.Context(), server: s, dial: func(u *url.URL) (remotecommand.Executor, error) { return executor(config, u) }})
			for r := range s.Requests() {
				if r.Upgrade != name {
					t.Errorf("%s arrived as %q, want %q", r.Verb, r.Upgrade, name)
				}
			}
		})
	}
}

func (c *client) run(t *testing.T, opts remotecommand.StreamOptions, verb, query string) (stdout, stderr string, err error) {
	t.Helper()
	executor, err := c.dial(address(c.server, "/"+verb+"/default/web/main", query))
	if err != nil {
		return "", "", err
	}
	var outBuf, errBuf bytes.Buffer
	if opts.Stdout == nil {
		opts.Stdout = &outBuf
	}
	if strings.Contains(query, "error=1") {
		opts.Stderr = &errBuf
	}
	err = executor.StreamWithContext(c.ctx, opts)
	return outBuf.String(), errBuf.String(), err
}

type sizeQueue chan remotecommand.TerminalSize

func (q sizeQueue) Next() *remotecommand.TerminalSize {
	size, ok := <-q
	if !ok {
		return nil
	}
	return &size
}

func start(t *testing.T, opts Options) (*Server, *rest.Config) {
	t.Helper()
	t.Cleanup(func() {
		goleak.VerifyNone(t,
			// client-go starts a websocket's heartbeat even if the connection has just ended.
			goleak.IgnoreAnyFunction("k8s.io/client-go/tools/remotecommand.(*heartbeat).start"),
			// Its port-forwarder leaves the reader of a connection's error behind if the connection ended otherwise.
			goleak.IgnoreAnyFunction("k8s.io/client-go/tools/portforward.(*PortForwarder).handleConnection.func1"),
			// A SPDY connection that was closed waits for its peer's streams, up to a timeout of its own.
			goleak.IgnoreAnyFunction("github.com/moby/spdystream.(*Connection).shutdown"),
		)
	})
	pki := newPKI(t)
	opts.Certificate = pki.issue(t, "127.0.0.1")
	s, err := Start(opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s, &rest.Config{Host: "https://" + s.Address().String(), TLSClientConfig: rest.TLSClientConfig{CAData: pki.caPEM}}
}

func address(s *Server, path, query string) *url.URL {
	return &url.URL{Scheme: "https", Host: s.Address().String(), Path: path, RawQuery: query}
}

func forwarder(t *testing.T, dialer httpstream.Dialer, port int) *portforward.PortForwarder {
	t.Helper()
	stop := make(chan struct{})
	f, err := portforward.NewOnAddresses(dialer, []string{"127.0.0.1"}, []string{fmt.Sprintf("0:%d", port)}, stop, make(chan struct{}), io.Discard, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		f.ForwardPorts() //nolint:errcheck // the lost connection is what is seen
	}()
	t.Cleanup(func() { close(stop); <-done })
	return f
}

func forward(t *testing.T, f *portforward.PortForwarder) net.Conn {
	t.Helper()
	<-f.Ready
	ports, err := f.GetPorts()
	if err != nil {
		t.Fatal(err)
	}
	conn, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", ports[0].Local))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() }) //nolint:errcheck // the test is over
	return conn
}

func get(t *testing.T, config *rest.Config, u *url.URL) io.Reader {
	t.Helper()
	response := send(t, config, u)
	if response.StatusCode != http.StatusOK {
		t.Fatalf("%s: %s", u, response.Status)
	}
	return response.Body
}

func send(t *testing.T, config *rest.Config, u *url.URL) *http.Response {
	t.Helper()
	own, err := rest.TLSConfigFor(config)
	if err != nil {
		t.Fatal(err)
	}
	transport := &http.Transport{TLSClientConfig: own, ForceAttemptHTTP2: true}
	t.Cleanup(transport.CloseIdleConnections)
	response, err := (&http.Client{Transport: transport}).Get(u.String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { response.Body.Close() }) //nolint:errcheck // read as far as wanted
	return response
}
