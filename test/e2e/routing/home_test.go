package routing

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"xds-server/test/e2e/suite"
	"xds-server/test/plane"
)

// bringHome gets every Envoy back to its own xds-server. One that went to another node's stays there until that
// connection ends, for which an xds-server would take minutes.
func bringHome(s *suite.S, w world) {
	s.Helper()
	ctx, cancel := context.WithTimeout(s.Ctx, 30*time.Second)
	defer cancel()
	if err := plane.Eventually(ctx, "every Envoy is with its own xds-server", func() error {
		for _, n := range w.Plane.Nodes {
			for _, other := range w.Plane.Nodes {
				if other == n {
					continue
				}
				if ended, err := endConnections(n.Envoy.PID(), other.XDSAddress); err != nil {
					return err
				} else if ended > 0 {
					return fmt.Errorf("that of %s was with the one of %s", n.Name, other.Name)
				}
			}
		}
		for _, n := range w.Plane.Nodes {
			if streams := xdsStreams(s, n); streams != 1 {
				return fmt.Errorf("the xds-server of %s has %d streams", n.Name, streams)
			}
		}
		return nil
	}); err != nil {
		s.Fatal(err)
	}
	waitConnected(s, w)
}

// endConnections ends a process's TCP connections to an address under it, as if the network had, and says how many.
func endConnections(pid int, address string) (ended int, err error) {
	process, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return 0, fmt.Errorf("opening process %d: %w", pid, err)
	}
	defer unix.Close(process)
	files, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
	if err != nil {
		return 0, err
	}
	for _, f := range files {
		n, err := strconv.Atoi(f.Name())
		if err != nil {
			return ended, err
		}
		socket, err := unix.PidfdGetfd(process, n, 0)
		if errors.Is(err, unix.EBADF) { // closed since
			continue
		}
		if err != nil {
			return ended, fmt.Errorf("taking file %d of process %d: %w", n, pid, err)
		}
		peer, err := unix.Getpeername(socket) // an error of what is no connection
		to, ok := peer.(*unix.SockaddrInet4)
		if err == nil && ok && netip.AddrPortFrom(netip.AddrFrom4(to.Addr), uint16(to.Port)).String() == address {
			if err = unix.Shutdown(socket, unix.SHUT_RDWR); err == nil {
				ended++
			}
		}
		_ = unix.Close(socket)
	}
	return ended, nil
}
