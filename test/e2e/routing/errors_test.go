package routing

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"sigs.k8s.io/yaml"

	"xds-server/test/e2e/suite"
	"xds-server/test/lab"
)

// aFault is one thing that is wrong on a node, and what the one line has to say of it.
type aFault struct {
	name string
	// break makes the node faulty, from one on which everything is right.
	spoil func(*faultyNode)
	// says are parts of the line: what is wrong, and where.
	says []string
}

// faultyNode is the files and arguments of one run of xds-server.
type faultyNode struct {
	*suite.S
	dir    string
	config map[string]any
	args   []string
}

func (n *faultyNode) path(name string) string { return filepath.Join(n.dir, name) }

func (n *faultyNode) write(name, content string) {
	n.Helper()
	if err := os.WriteFile(n.path(name), []byte(content), 0o644); err != nil {
		n.Fatal(err)
	}
}

func (n *faultyNode) remove(name string) {
	n.Helper()
	if err := os.Remove(n.path(name)); err != nil {
		n.Fatal(err)
	}
}

func (n *faultyNode) lock(name string) {
	n.Helper()
	if err := os.Chmod(n.path(name), 0); err != nil {
		n.Fatal(err)
	}
	n.Cleanup(func() { _ = os.Chmod(n.path(name), 0o700) })
}

func (n *faultyNode) copy(from, to string) {
	n.Helper()
	b, err := os.ReadFile(n.path(from))
	if err != nil {
		n.Fatal(err)
	}
	n.write(to, string(b))
}

func (n *faultyNode) server(i int) map[string]any {
	return n.config["servers"].([]any)[i].(map[string]any)
}

// flag replaces the value of an argument of bootstrap.
func (n *faultyNode) flag(name, value string) {
	for i, a := range n.args {
		if a == "--"+name {
			n.args[i+1] = value
			return
		}
	}
	n.args = append(n.args, "--"+name, value)
}

var serveFaults = []aFault{
	{"no CA", func(n *faultyNode) { n.remove("ca.crt") }, []string{"peerCAFile", "/ca.crt", "no such file"}},
	{"CA not readable", func(n *faultyNode) { n.lock("ca.crt") }, []string{"peerCAFile", "/ca.crt", "permission denied"}},
	{"CA without a certificate", func(n *faultyNode) { n.write("ca.crt", "nothing") }, []string{"peerCAFile", "/ca.crt", "no PEM certificate"}},
	{"no certificate", func(n *faultyNode) { n.remove("xds-server.crt") }, []string{"tlsCertFile", "/xds-server.crt", "no such file"}},
	{"certificate not readable", func(n *faultyNode) { n.lock("xds-server.crt") }, []string{"tlsCertFile", "/xds-server.crt", "permission denied"}},
	{"no key", func(n *faultyNode) { n.remove("xds-server.key") }, []string{"tlsPrivateKeyFile", "/xds-server.key", "no such file"}},
	{"key not readable", func(n *faultyNode) { n.lock("xds-server.key") }, []string{"tlsPrivateKeyFile", "/xds-server.key", "permission denied"}},
	{"another certificate's key", func(n *faultyNode) { n.copy("apiserver.key", "xds-server.key") }, []string{"tlsPrivateKeyFile", "/xds-server.key", "does not fit"}},
	{"no socket directory", func(n *faultyNode) { n.config["socket"] = n.path("none/xds.sock") }, []string{"socket", "/none", "does not exist"}},
	{"socket directory not writable", func(n *faultyNode) {
		if err := os.Mkdir(n.path("run"), 0o555); err != nil {
			n.Fatal(err)
		}
		n.config["socket"] = n.path("run/xds.sock")
	}, []string{"socket", "/run/xds.sock", "permission denied"}},
	{"socket taken by a file", func(n *faultyNode) { n.write("xds.sock", "") }, []string{"socket", "/xds.sock", "no socket"}},
	{"socket taken by another server", func(n *faultyNode) {
		l, err := net.Listen("unix", n.path("xds.sock"))
		if err != nil {
			n.Fatal(err)
		}
		n.Cleanup(func() { _ = l.Close() })
	}, []string{"socket", "/xds.sock", "another server"}},
	{"no configuration", func(n *faultyNode) { n.flag("config", n.path("none.yaml")) }, []string{"/none.yaml", "no such file"}},
	{"configuration not readable", func(n *faultyNode) {
		n.write("locked.yaml", "")
		n.lock("locked.yaml")
		n.flag("config", n.path("locked.yaml"))
	}, []string{"/locked.yaml", "permission denied"}},
	{"configuration that is no YAML", func(n *faultyNode) { n.write("bad.yaml", "servers: [\n"); n.flag("config", n.path("bad.yaml")) }, []string{"/bad.yaml", "yaml"}},
	{"unknown key", func(n *faultyNode) { n.config["peerCaFiles"] = "x" }, []string{"/config.yaml", "unknown key", "peercafiles"}},
	{"unknown key inside of a list", func(n *faultyNode) { n.server(1)["adress"] = "x" }, []string{"/config.yaml", "adress"}},
	{"value of another type", func(n *faultyNode) { n.config["pollInterval"] = 5 }, []string{"/config.yaml", "pollInterval", "not a duration"}},
	{"bad address of a server", func(n *faultyNode) { n.server(1)["address"] = "10.0.0.12" }, []string{"/config.yaml", "servers[1].address", `"10.0.0.12" is not host:port`}},
	{"bad listen address", func(n *faultyNode) { n.config["listen"] = "10.0.0.12:http" }, []string{"/config.yaml", "listen", `"10.0.0.12:http"`}},
	{"bad admin address", func(n *faultyNode) { n.config["adminAddress"] = "localhost" }, []string{"/config.yaml", "adminAddress", `"localhost" is not host:port`}},
	{"listen address of another machine", func(n *faultyNode) { n.config["listen"] = "192.0.2.1:9443" }, []string{"192.0.2.1:9443", "cannot assign"}},
	{"admin address that is taken", func(n *faultyNode) {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			n.Fatal(err)
		}
		n.Cleanup(func() { _ = l.Close() })
		n.config["adminAddress"] = l.Addr().String()
	}, []string{"127.0.0.1:", "address already in use"}},
	{"duplicate node name", func(n *faultyNode) { n.server(1)["name"] = "a" }, []string{"/config.yaml", "servers[0] and servers[1]", `the same name "a"`}},
	{"bad node name", func(n *faultyNode) { n.server(1)["name"] = "Node B" }, []string{"/config.yaml", "servers[1].name", `"Node B"`}},
	{"front-proxy CA that is the client CA", func(n *faultyNode) { n.copy("ca.crt", "front-proxy-ca.crt") }, []string{"listenClientCAFile", "/front-proxy-ca.crt", "/ca.crt", "the same CA"}},
	{"no front-proxy CA", func(n *faultyNode) { n.remove("front-proxy-ca.crt") }, []string{"listenClientCAFile", "/front-proxy-ca.crt", "no such file"}},
	{"unknown flag", func(n *faultyNode) { n.args = append(n.args, "--peer-ca", "x") }, []string{"unknown flag", "--peer-ca"}},
}

var bootstrapFaults = []aFault{
	{"no client CA", func(n *faultyNode) { n.remove("ca.crt") }, []string{"-ca-file", "/ca.crt", "no such file"}},
	{"client CA not readable", func(n *faultyNode) { n.lock("ca.crt") }, []string{"-ca-file", "/ca.crt", "permission denied"}},
	{"no serving certificate", func(n *faultyNode) { n.remove("apiserver.crt") }, []string{"--serving-cert-file", "/apiserver.crt", "no such file"}},
	{"serving key not readable", func(n *faultyNode) { n.lock("apiserver.key") }, []string{"--serving-key-file", "/apiserver.key", "permission denied"}},
	{"no front-proxy certificate", func(n *faultyNode) { n.remove("front-proxy-client.crt") }, []string{"--proxy-client-cert-file", "/front-proxy-client.crt", "no such file"}},
	{"front-proxy key of another", func(n *faultyNode) { n.copy("apiserver.key", "front-proxy-client.key") }, []string{"--proxy-client-key-file", "/front-proxy-client.key", "does not fit"}},
	{"front-proxy CA that is the client CA", func(n *faultyNode) { n.copy("ca.crt", "front-proxy-ca.crt") }, []string{"/front-proxy-ca.crt", "/ca.crt", "the same CA"}},
	{"socket that is no absolute path", func(n *faultyNode) { n.flag("socket", "xds.sock") }, []string{"--socket", `"xds.sock"`, "not an absolute path"}},
	{"secrets directory not writable", func(n *faultyNode) {
		if err := os.Mkdir(n.path("sds"), 0o555); err != nil {
			n.Fatal(err)
		}
		n.flag("secrets-dir", n.path("sds"))
	}, []string{"--secrets-dir", "/sds", "permission denied"}},
	{"bad address", func(n *faultyNode) { n.flag("address", "cp-1") }, []string{"--address", `"cp-1`, "is not IP:port"}},
	{"address that is the apiserver's", func(n *faultyNode) { n.flag("local-address", "10.0.0.11:6443") }, []string{"--address", "10.0.0.11:6443", "--local-address"}},
	{"bad address of an xds-server", func(n *faultyNode) { n.flag("xds-peer", "10.0.0.12") }, []string{"--xds-peer", `"10.0.0.12"`, "is not IP:port"}},
	{"admin interface open to the network", func(n *faultyNode) { n.flag("admin-address", "10.0.0.11:9901") }, []string{"--admin-address", `"10.0.0.11:9901"`, "loopback"}},
	{"no node name", func(n *faultyNode) { n.flag("node-name", "") }, []string{"--node-name", "required"}},
	{"bad node name", func(n *faultyNode) { n.flag("node-name", "Node A") }, []string{"--node-name", `"Node A"`}},
	{"no allowed name", func(n *faultyNode) { n.flag("requestheader-allowed-names", "") }, []string{"--requestheader-allowed-names", "required"}},
	{"unknown flag", func(n *faultyNode) { n.args = append(n.args, "--node", "x") }, []string{"unknown flag", "--node"}},
}

func TestOneLineSaysWhatIsWrongAndWhere(t *testing.T) {
	suite.Scenario(t, "A9", fmt.Sprintf("%d faults of files, addresses and names: one line that says what and where, exit code not 0", len(serveFaults)+len(bootstrapFaults)), func(s *suite.S) {
		pki, err := lab.NewPKI()
		if err != nil {
			s.Fatal(err)
		}
		for command, faults := range map[string][]aFault{"serve": serveFaults, "bootstrap": bootstrapFaults} {
			for _, f := range faults {
				s.Sub(command+", "+f.name, func(s *suite.S) {
					n := sound(s, pki, command)
					f.spoil(n)
					stdout, line := n.fails()
					if stdout != "" {
						s.Errorf("something was printed on standard output all the same: %.200s", stdout)
					}
					for _, part := range f.says {
						if !strings.Contains(line, part) {
							s.Errorf("the line does not say %q: %s", part, line)
						}
					}
				})
			}
			// The safeguard of this test itself: without a fault nothing fails.
			s.Sub(command+", no fault", func(s *suite.S) { sound(s, pki, command).works() })
		}
	})
}

// sound is a node on which nothing is wrong.
func sound(s *suite.S, pki *lab.PKI, command string) *faultyNode {
	s.Helper()
	n := &faultyNode{S: s, dir: s.TempDir(), args: []string{command}}
	if err := pki.WriteNode(n.dir, "a", net.IPv4(127, 0, 0, 1)); err != nil {
		s.Fatal(err)
	}
	if command == "bootstrap" {
		for flag, value := range map[string]string{
			"node-name": "a", "address": "10.0.0.11", "socket": n.path("xds.sock"), "secrets-dir": n.path("secrets"),
			"serving-cert-file": n.path("apiserver.crt"), "serving-key-file": n.path("apiserver.key"),
			"client-ca-file": n.path("ca.crt"), "server-ca-file": n.path("ca.crt"),
			"proxy-client-cert-file": n.path("front-proxy-client.crt"), "proxy-client-key-file": n.path("front-proxy-client.key"),
			"requestheader-client-ca-file": n.path("front-proxy-ca.crt"),
		} {
			n.flag(flag, value)
		}
		return n
	}
	n.flag("config", n.path("config.yaml"))
	n.config = map[string]any{
		"nodeName": "a", "servers": []any{
			map[string]any{"name": "a", "address": "127.0.0.1:1", "direct": true},
			map[string]any{"name": "b", "address": "127.0.0.1:2"},
		},
		"peerCAFile": n.path("ca.crt"), "tlsCertFile": n.path("xds-server.crt"), "tlsPrivateKeyFile": n.path("xds-server.key"),
		"socket": n.path("xds.sock"), "listen": "127.0.0.1:0", "listenClientCAFile": n.path("front-proxy-ca.crt"),
		"adminAddress": "127.0.0.1:0",
	}
	return n
}

// run runs the real binary, without root's right to read and write everything, until it ends or ctx does.
func (n *faultyNode) run(ctx context.Context) (stdout, stderr string, err error) {
	n.Helper()
	n.Count(1)
	if n.config != nil {
		b, err := yaml.Marshal(n.config)
		if err != nil {
			n.Fatal(err)
		}
		n.write("config.yaml", string(b))
	}
	var out, errs strings.Builder
	cmd := exec.CommandContext(ctx, lab.XDSServer.Path(), n.args...)
	cmd.Stdout, cmd.Stderr = &out, &errs
	cmd.Cancel = func() error { return cmd.Process.Signal(unix.SIGTERM) }
	cmd.WaitDelay = 5 * time.Second
	err = runUnprivileged(cmd)
	return out.String(), errs.String(), err
}

// runUnprivileged runs a command that obeys file modes even for root.
func runUnprivileged(cmd *exec.Cmd) error {
	done := make(chan error)
	go func() {
		// The thread ends with this goroutine, since it is never unlocked: what it gave up stays its own.
		runtime.LockOSThread()
		for _, capability := range []uintptr{unix.CAP_DAC_OVERRIDE, unix.CAP_DAC_READ_SEARCH} {
			if err := unix.Prctl(unix.PR_CAPBSET_DROP, capability, 0, 0, 0); err != nil && os.Geteuid() == 0 {
				done <- fmt.Errorf("giving up the right to read everything: %w", err)
				return
			}
		}
		done <- cmd.Run()
	}()
	return <-done
}

// fails runs it and gives the one line that it has to end with.
func (n *faultyNode) fails() (stdout, line string) {
	n.Helper()
	ctx, cancel := context.WithTimeout(n.Ctx, 15*time.Second)
	defer cancel()
	stdout, stderr, err := n.run(ctx)
	var exit *exec.ExitError
	if !errors.As(err, &exit) || ctx.Err() != nil || exit.ExitCode() <= 0 {
		n.Fatalf("xds-server did not stop by itself with an exit code other than 0: %v\n%s", err, stderr)
	}
	line, rest, ended := strings.Cut(stderr, "\n")
	if !ended || rest != "" || strings.TrimSpace(line) == "" {
		n.Errorf("standard error is not one line:\n%s", stderr)
	}
	return stdout, line
}

// works runs it and stops it.
func (n *faultyNode) works() {
	n.Helper()
	ctx, cancel := context.WithTimeout(n.Ctx, 15*time.Second)
	defer cancel()
	if n.config == nil {
		if stdout, stderr, err := n.run(ctx); err != nil || stderr != "" || !strings.Contains(stdout, "id: \"a\"") {
			n.Fatalf("bootstrap: %v\n%s", err, stderr)
		}
		return
	}
	listening := make(chan struct{})
	go func() {
		defer cancel()
		for ctx.Err() == nil {
			if c, err := net.Dial("unix", n.path("xds.sock")); err == nil {
				_ = c.Close()
				close(listening)
				return
			}
			time.Sleep(20 * time.Millisecond)
		}
	}()
	_, stderr, err := n.run(ctx)
	select {
	case <-listening:
	default:
		n.Fatalf("serve never opened its socket: %v\n%s", err, stderr)
	}
}
