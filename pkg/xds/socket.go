package xds

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"syscall"
	"time"
)

const (
	// socketMode lets the socket's owner and group connect: whoever can is trusted like the node's Envoy.
	socketMode = 0o660
	// maxSocketPath is what the kernel's sockaddr_un holds, less its final zero and the suffix of the temporary name.
	maxSocketPath = 107 - len(newSuffix)
	newSuffix     = ".new"
)

// listenUnix opens a unix socket that nobody can connect to before it has its mode. It takes the place of a socket
// whose server is gone, but neither of one that answers nor of any other file.
func listenUnix(path string) (net.Listener, error) {
	if len(path) > maxSocketPath {
		return nil, fmt.Errorf("the path is longer than %d bytes", maxSocketPath)
	}
	unlock, err := lockDir(filepath.Dir(path))
	if err != nil {
		return nil, err
	}
	defer unlock()
	if err := checkFree(path); err != nil {
		return nil, err
	}
	temporary := path + newSuffix
	if err := os.Remove(temporary); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("removing what an earlier start left: %w", err)
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: temporary, Net: "unix"})
	if err != nil {
		return nil, err
	}
	l.SetUnlinkOnClose(false)
	own, err := place(temporary, path)
	if err != nil {
		return nil, errors.Join(err, l.Close(), os.Remove(temporary))
	}
	return &unixListener{Listener: l, path: path, own: own}, nil
}

// place gives the socket its mode and its name.
func place(temporary, path string) (os.FileInfo, error) {
	if err := os.Chmod(temporary, socketMode); err != nil {
		return nil, err
	}
	own, err := os.Lstat(temporary)
	if err != nil {
		return nil, err
	}
	return own, os.Rename(temporary, path)
}

// checkFree says why the path can't be taken.
func checkFree(path string) error {
	info, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if info.Mode().Type() != fs.ModeSocket {
		return errors.New("the path is taken by something that is not a socket")
	}
	conn, err := net.DialTimeout("unix", path, time.Second)
	switch {
	case err == nil:
		return errors.Join(errors.New("another server is answering there"), conn.Close())
	case errors.Is(err, syscall.ECONNREFUSED):
		return nil // a leftover
	default:
		return fmt.Errorf("finding out whether another server is there: %w", err)
	}
}

// lockDir keeps two servers that start together from taking each other's socket for a leftover.
func lockDir(dir string) (func(), error) {
	f, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX); err != nil {
		return nil, errors.Join(fmt.Errorf("locking %s: %w", dir, err), f.Close())
	}
	return func() { _ = f.Close() }, nil
}

// unixListener removes its socket when it closes, if it is still its own.
type unixListener struct {
	net.Listener
	path string
	own  os.FileInfo
}

func (l *unixListener) Addr() net.Addr { return &net.UnixAddr{Name: l.path, Net: "unix"} }

func (l *unixListener) Close() error {
	if now, err := os.Lstat(l.path); err == nil && os.SameFile(now, l.own) {
		_ = os.Remove(l.path)
	}
	return l.Listener.Close()
}
