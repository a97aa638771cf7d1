package streamer

import (
	"net"
	"sync"
)

// trackedListener closes its connections with itself. An http.Server forgets those that were upgraded.
type trackedListener struct {
	net.Listener

	mu     sync.Mutex
	closed bool
	conns  map[net.Conn]struct{}
}

func (l *trackedListener) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		conn.Close() //nolint:errcheck // never used
		return nil, net.ErrClosed
	}
	l.conns[conn] = struct{}{}
	return &trackedConn{TCPConn: conn.(*net.TCPConn), forget: func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		delete(l.conns, conn)
	}}, nil
}

func (l *trackedListener) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closed = true
	for conn := range l.conns {
		conn.Close() //nolint:errcheck // whoever uses it sees it
	}
	return l.Listener.Close()
}

type trackedConn struct {
	*net.TCPConn
	forget func()
}

func (c *trackedConn) Close() error {
	c.forget()
	return c.TCPConn.Close()
}
