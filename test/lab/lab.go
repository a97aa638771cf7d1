package lab

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
)

// Config says what a lab has.
type Config struct {
	Nodes []NodeConfig
}

// NodeConfig says what one node is.
type NodeConfig struct {
	Name    string // default node-1, node-2, …
	Version string // of its kube-apiserver, one of KubeVersions
	// RuntimeConfig are entries of --runtime-config, for example "batch/v1=false".
	RuntimeConfig []string
	// ExtraArgs are further flags of its kube-apiserver; they win.
	ExtraArgs []string
	// Later leaves its kube-apiserver for the test to start.
	Later bool
}

// A Lab is one control plane.
type Lab struct {
	Dir   string
	PKI   *PKI
	Etcd  *Process
	Nodes []*Node

	number    int
	tokens    map[string]string
	mu        sync.Mutex
	processes []*Process
	files     int // kubeconfigs written
}

// New makes a lab, its files and its authorities. Nothing runs yet.
func New(c Config) (*Lab, error) {
	if runRoot == "" {
		return nil, errors.New("lab: not inside the lab: enter it with lab.Main or lab.Run")
	}
	open.Lock()
	defer open.Unlock()
	if open.made == 250 {
		return nil, errors.New("lab: this program has used all the networks it has for labs")
	}
	open.made++
	l := &Lab{number: open.made, Dir: filepath.Join(runRoot, fmt.Sprintf("lab-%d", open.made))}
	if err := l.setUp(c); err != nil {
		return nil, fmt.Errorf("lab: %w", err)
	}
	if open.labs == nil {
		open.labs = map[*Lab]bool{}
	}
	open.labs[l] = true
	return l, nil
}

func (l *Lab) setUp(c Config) (err error) {
	if err := os.MkdirAll(l.Dir, 0o755); err != nil {
		return err
	}
	if l.PKI, err = NewPKI(); err != nil {
		return err
	}
	if err := l.writeTokens(); err != nil {
		return fmt.Errorf("writing the tokens: %w", err)
	}
	if err := os.WriteFile(l.auditPolicy(), []byte(auditPolicy), 0o644); err != nil {
		return err
	}
	if err := l.setUpEtcd(); err != nil {
		return fmt.Errorf("setting up etcd: %w", err)
	}
	for _, n := range c.Nodes {
		if _, err := l.AddNode(n); err != nil {
			return err
		}
	}
	return nil
}

// Start starts etcd and every kube-apiserver that is not for later, all at
// once, waits until they are ready, and gives the test users their rights.
func (l *Lab) Start(ctx context.Context) error {
	if err := l.Etcd.Start(); err != nil {
		return err
	}
	if err := l.Etcd.WaitReady(ctx); err != nil {
		return err
	}
	g, starting := errgroup.WithContext(ctx)
	var first *Node
	for _, n := range l.Nodes {
		if n.later {
			continue
		}
		if first == nil {
			first = n
		}
		g.Go(func() error {
			if err := n.Server.Start(); err != nil {
				return err
			}
			return n.Server.WaitReady(starting)
		})
	}
	if err := g.Wait(); err != nil || first == nil {
		return err
	}
	return l.applyRBAC(ctx, first)
}

// Close ends everything, waits for the end, and removes the lab's files.
func (l *Lab) Close() error {
	l.mu.Lock()
	processes := l.processes
	l.processes = nil
	l.mu.Unlock()
	var g errgroup.Group
	for _, p := range processes {
		g.Go(func() error {
			p.Kill()
			return nil
		})
	}
	g.Wait()
	open.Lock()
	delete(open.labs, l)
	open.Unlock()
	if os.Getenv("XDS_LAB_KEEP") != "" {
		return nil
	}
	return os.RemoveAll(l.Dir)
}

// add makes a process that ends with the lab.
func (l *Lab) add(p *Process) *Process {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.processes = append(l.processes, p)
	return p
}

// StartTimeout is how long a control plane may take to become ready on a busy
// machine with two processors.
const StartTimeout = 2 * time.Minute

// ForTest is a started lab that ends with the test. A failed test shows the end
// of every log.
func ForTest(t testing.TB, c Config) *Lab {
	t.Helper()
	l, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			l.mu.Lock()
			for _, p := range l.processes {
				t.Logf("end of %s's log:\n%s", p.Name, p.LogTail(15))
			}
			l.mu.Unlock()
		}
		if err := l.Close(); err != nil {
			t.Errorf("closing the lab: %v", err)
		}
	})
	ctx, cancel := context.WithTimeout(t.Context(), StartTimeout)
	defer cancel()
	if err := l.Start(ctx); err != nil {
		t.Fatal(err)
	}
	return l
}

// Node is the node of that name.
func (l *Lab) Node(name string) *Node {
	for _, n := range l.Nodes {
		if n.Name == name {
			return n
		}
	}
	panic("lab: no node is called " + name)
}

// address is an address of this lab's share of a /16.
func (l *Lab) address(first, second, last int) net.IP {
	return net.IPv4(byte(first), byte(second), byte(l.number), byte(last)).To4()
}
