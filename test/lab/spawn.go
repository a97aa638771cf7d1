package lab

import (
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
)

// spawner starts every process of the lab on one operating system thread that
// lives as long as this program: the kernel sends a child's Pdeathsig when the
// thread that made it ends, not when the program does.
var spawner = sync.OnceValue(func() chan<- func() {
	c := make(chan func())
	go func() {
		runtime.LockOSThread()
		for f := range c {
			f()
		}
	}()
	return c
})

// spawn starts a command so that it can not outlive this program.
func spawn(cmd *exec.Cmd) error {
	cmd.SysProcAttr.Pdeathsig = syscall.SIGKILL
	done := make(chan error)
	spawner() <- func() { done <- cmd.Start() }
	return <-done
}

// childEnv is the environment of what the lab starts: ours, but without what
// would send loopback traffic through a proxy or to another cluster.
func childEnv() []string {
	return slices.DeleteFunc(os.Environ(), func(kv string) bool {
		name, _, _ := strings.Cut(strings.ToLower(kv), "=")
		return strings.HasSuffix(name, "_proxy") || name == "kubeconfig"
	})
}
