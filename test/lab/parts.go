package lab

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"
)

// recipe is part of every cache path. Raise it when a change to the way parts
// are built has to reach machines that have already built them.
const recipe = "1"

// A Part is one real program that the lab runs.
type Part struct {
	Name    string // the file name of its program
	Version string
	get     func(ctx context.Context, p Part, file string) error
}

// The parts that have one version only.
var (
	Etcd    = Part{"etcd", etcdVersion, getEtcd}
	GRPCurl = Part{"grpcurl", grpcurlVersion, getGRPCurl}
	Envoy   = Part{"envoy", envoyVersion, getEnvoy}
	// XDSServer is built from this tree, afresh for every run.
	XDSServer = Part{Name: "xds-server"}
)

// KubeAPIServer is the kube-apiserver of one of KubeVersions.
func KubeAPIServer(version string) Part { return kubePart("kube-apiserver", version) }

// KubeControllerManager is the kube-controller-manager of one of KubeVersions.
func KubeControllerManager(version string) Part {
	return kubePart("kube-controller-manager", version)
}

// Kubectl is the kubectl of one of KubeVersions.
func Kubectl(version string) Part { return kubePart("kubectl", version) }

func kubePart(name, version string) Part { return Part{name, version, getKubernetes} }

// Upgrade is what most runs need: a control plane in the middle of the upgrade
// from 1.36 to 1.37.
func Upgrade() []Part {
	return []Part{
		Etcd, KubeAPIServer(Kube136), KubeAPIServer(Kube137), Envoy, XDSServer,
		Kubectl(Kube136), Kubectl(Kube137), GRPCurl,
	}
}

func (p Part) String() string {
	if p.Version == "" {
		return p.Name
	}
	return p.Name + " " + p.Version
}

// Path is where the part's program lies once it was got.
func (p Part) Path() string {
	if p.Name == XDSServer.Name {
		return filepath.Join(runRoot, "bin", p.Name)
	}
	return filepath.Join(cacheDir(), "v"+recipe, p.Name, p.Version, p.Name)
}

// cacheDir is where parts are kept, outside the tree. It is the program's
// business to have a home directory or to say XDS_LAB_CACHE.
func cacheDir() string {
	if d := os.Getenv("XDS_LAB_CACHE"); d != "" {
		return d
	}
	d, err := os.UserCacheDir()
	if err != nil {
		d = os.TempDir()
	}
	return filepath.Join(d, "xds-server-lab")
}

// Parts gets every part that is not in the cache yet, and tells progress as it
// goes: on a fresh machine this takes minutes. Several programs may call it at
// the same time: each part is built once. One part is built after the other,
// since each build takes all processors by itself.
func Parts(ctx context.Context, progress io.Writer, parts ...Part) error {
	for _, p := range parts {
		if p.Name == XDSServer.Name {
			continue // it belongs to a run, not to the cache
		}
		if err := ensure(ctx, progress, p); err != nil {
			return fmt.Errorf("getting %s: %w", p, err)
		}
	}
	return nil
}

func ensure(ctx context.Context, progress io.Writer, p Part) error {
	path := p.Path()
	if exists(path) {
		return nil
	}
	dir := filepath.Dir(path)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("making the cache directory: %w", err)
	}
	unlock, err := lockFile(ctx, filepath.Join(cacheDir(), "lock"), func() {
		fmt.Fprintf(progress, "lab: waiting for another program that is getting parts\n")
	})
	if err != nil {
		return err
	}
	defer unlock()
	if exists(path) { // by the program that held the lock
		return nil
	}

	defer tell(progress, p)()
	// What a killed program left half done; we hold the lock.
	leftovers, _ := filepath.Glob(filepath.Join(dir, ".work-*"))
	for _, d := range leftovers {
		os.RemoveAll(d)
	}
	work, err := os.MkdirTemp(dir, ".work-")
	if err != nil {
		return fmt.Errorf("making a working directory: %w", err)
	}
	defer os.RemoveAll(work)
	file := filepath.Join(work, p.Name)
	if err := p.get(ctx, p, file); err != nil {
		return err
	}
	if err := os.Rename(file, path); err != nil {
		return fmt.Errorf("moving it into the cache: %w", err)
	}
	return nil
}

// tell says that a part is being got, and how long it has taken, until the
// returned function is called. Building a kube-apiserver takes minutes.
func tell(progress io.Writer, p Part) (done func()) {
	fmt.Fprintf(progress, "lab: getting %s\n", p)
	begin := time.Now()
	say := func(what string) {
		fmt.Fprintf(progress, "lab: %s %s, %s\n", what, p, time.Since(begin).Round(time.Second))
	}
	tick := time.NewTicker(30 * time.Second)
	over, told := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(told)
		for {
			select {
			case <-over:
				return
			case <-tick.C:
				say("still getting")
			}
		}
	}()
	return func() {
		tick.Stop()
		close(over)
		<-told
		if exists(p.Path()) {
			say("got")
		}
	}
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return !errors.Is(err, os.ErrNotExist)
}
