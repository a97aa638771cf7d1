package streamer

import (
	"context"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"

	"k8s.io/cri-streaming/pkg/streaming/remotecommand"
	utilexec "k8s.io/utils/exec"
)

// EchoPort is the one port at which a container of the stand-in listens: it sends back what it gets. (RFC 862's.)
const EchoPort = 7

// container is the runtime behind the CRI streaming server. It serves every container id.
type container struct {
	log  logWriter
	echo string
}

// Exec runs one of a few commands:
//
//	cat         stdin to stdout, byte for byte, until stdin ends
//	echo WORDS  the words to stdout
//	warn WORDS  the words to stderr
//	seq N       the lines 1 to N to stdout
//	exit N      ends with exit code N
//	sizes       with a terminal: COLUMNSxROWS to stdout at every change of its size, until stdin ends
//
// Any other ends with exit code 127, as in a shell.
func (c *container) Exec(ctx context.Context, _ string, cmd []string, in io.Reader, out, errOut io.WriteCloser, _ bool, resize <-chan remotecommand.TerminalSize) error {
	stdin, stdout, stderr := orEmpty(in), orNowhere(out), orNowhere(errOut)
	if len(cmd) == 0 {
		return exit(127, "no command")
	}
	switch name, args := cmd[0], cmd[1:]; {
	case name == "cat":
		_, err := io.Copy(stdout, stdin)
		return err
	case name == "echo":
		_, err := fmt.Fprintln(stdout, strings.Join(args, " "))
		return err
	case name == "warn":
		_, err := fmt.Fprintln(stderr, strings.Join(args, " "))
		return err
	case name == "seq" && len(args) == 1:
		last, err := strconv.Atoi(args[0])
		if err != nil {
			return exit(2, err.Error())
		}
		return writeNumbers(stdout, last)
	case name == "exit" && len(args) == 1:
		code, err := strconv.Atoi(args[0])
		if err != nil {
			return exit(2, err.Error())
		}
		return exit(code, "as asked")
	case name == "sizes":
		return reportSizes(ctx, stdin, stdout, resize)
	}
	fmt.Fprintf(stderr, "%s: not found\n", cmd[0]) //nolint:errcheck // the exit code says it too
	return exit(127, "not found")
}

// Attach joins the container's main process. It greets; with stdin it sends back what it gets until that ends, without
// it prints the log for ever.
func (c *container) Attach(ctx context.Context, id string, in io.Reader, out, _ io.WriteCloser, _ bool, _ <-chan remotecommand.TerminalSize) error {
	stdout := orNowhere(out)
	if _, err := fmt.Fprintf(stdout, "attached to %s\n", id); err != nil {
		return err
	}
	if in == nil {
		c.log.follow(ctx, stdout, func() error { return nil }, 1)
		return nil
	}
	_, err := io.Copy(stdout, in)
	return err
}

// PortForward joins a data stream to a TCP connection, as containerd does inside a pod's network namespace.
func (c *container) PortForward(ctx context.Context, id string, port int32, stream io.ReadWriteCloser) error {
	if port != EchoPort {
		return fmt.Errorf("connect to port %d of %s: connection refused", port, id)
	}
	var dialer net.Dialer
	conn, err := dialer.DialContext(ctx, "tcp", c.echo)
	if err != nil {
		return fmt.Errorf("connect to port %d of %s: %w", port, id, err)
	}
	defer conn.Close() //nolint:errcheck // read to its end
	go func() {
		io.Copy(conn, stream)            //nolint:errcheck // the echo's side reports it
		conn.(*net.TCPConn).CloseWrite() //nolint:errcheck // likewise
	}()
	_, err = io.Copy(stream, conn)
	return err
}

// serveEcho is the program that listens at EchoPort.
func serveEcho(l net.Listener) error {
	for {
		conn, err := l.Accept()
		if err != nil {
			return err
		}
		go func() {
			defer conn.Close()  //nolint:errcheck // the other side sees it
			io.Copy(conn, conn) //nolint:errcheck // likewise
		}()
	}
}

func writeNumbers(w io.Writer, last int) error {
	buf := make([]byte, 0, 32<<10)
	for n := 1; n <= last; n++ {
		buf = append(strconv.AppendInt(buf, int64(n), 10), '\n')
		if len(buf) > 31<<10 || n == last {
			if _, err := w.Write(buf); err != nil {
				return err
			}
			buf = buf[:0]
		}
	}
	return nil
}

func reportSizes(ctx context.Context, stdin io.Reader, stdout io.Writer, resize <-chan remotecommand.TerminalSize) error {
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		io.Copy(io.Discard, stdin) //nolint:errcheck // its end is what counts
	}()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-ended:
			return nil
		case size, ok := <-resize:
			if !ok {
				resize = nil // no more changes, and stdin is still open
				continue
			}
			if _, err := fmt.Fprintf(stdout, "%dx%d\n", size.Width, size.Height); err != nil {
				return err
			}
		}
	}
}

func exit(code int, why string) error {
	if code == 0 {
		return nil
	}
	return utilexec.CodeExitError{Code: code, Err: fmt.Errorf("exit code %d: %s", code, why)}
}

// orEmpty and orNowhere stand in for a stream that the client did not ask for.
func orEmpty(r io.Reader) io.Reader {
	if r == nil {
		return strings.NewReader("")
	}
	return r
}

func orNowhere(w io.Writer) io.Writer {
	if w == nil {
		return io.Discard
	}
	return w
}
