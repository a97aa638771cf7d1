package routing

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"xds-server/test/e2e/suite"
	"xds-server/test/lab"
)

const trustBundles = "/apis/certificates.k8s.io/v1/clustertrustbundles"

// A peerOnly is a kind of object that only the new server serves.
type peerOnly struct {
	collection, resource string
	spec                 map[string]any
	apiVersion, kind     string
}

func TestKubectlUsesPeerOnlyAPIsThroughTheOldFront(t *testing.T) {
	suite.Scenario(t, "A8", "kubectl of both versions: peer-only objects by raw path and by name through the old server's front", func(s *suite.S) {
		w := upgrade(s)
		kinds := []peerOnly{
			{migrations, "storageversionmigrations", map[string]any{"resource": map[string]any{"group": "", "resource": "secrets"}},
				"storagemigration.k8s.io/v1", "StorageVersionMigration"},
			{trustBundles, "clustertrustbundles", map[string]any{"trustBundle": string(w.PKI.CA.CertPEM())},
				"certificates.k8s.io/v1", "ClusterTrustBundle"},
		}
		alice := s.Client(w.Lab, w.Token("alice"), lab.HTTP2)
		for _, version := range []string{lab.Kube136, lab.Kube137} {
			kubeconfig := primed(s, w, version)
			for _, kind := range kinds {
				s.Want(alice, http.MethodGet, w.old.DirectURL()+kind.collection, "", http.StatusNotFound, "")
				s.Sub(fmt.Sprintf("kubectl %s %s", version, kind.kind), func(s *suite.S) {
					k := kubectl{S: s, world: w, version: version, kubeconfig: kubeconfig}
					k.byRawPath(kind)
					k.byName(kind)
				})
			}
		}
	})
}

// kubectl runs kubectl commands, each of which has to succeed.
type kubectl struct {
	*suite.S
	world
	version, kubeconfig string
}

func (k kubectl) byRawPath(kind peerOnly) {
	k.Helper()
	const name = "by-raw-path"
	object := kind.collection + "/" + name
	k.must(`"name":"`+name+`"`, kind.manifest(name, nil), "create", "--raw", kind.collection, "-f", "-")
	k.must(`"kind":"`+kind.kind+`"`, "", "get", "--raw", object)
	k.must(`"kind":"`+kind.kind+`List"`, "", "get", "--raw", kind.collection)
	k.must(`"type":"ADDED"`, "", "get", "--raw", kind.collection+"?watch=true&timeoutSeconds=1")
	var current map[string]any
	if err := json.Unmarshal(k.must("", "", "get", "--raw", object), &current); err != nil {
		k.Fatal(err)
	}
	current["metadata"].(map[string]any)["labels"] = map[string]string{"step": "replaced"}
	replacement, err := json.Marshal(current)
	if err != nil {
		k.Fatal(err)
	}
	k.must(`"step":"replaced"`, string(replacement), "replace", "--raw", object, "-f", "-")
	k.must(name, "", "delete", "--raw", object)
}

func (k kubectl) byName(kind peerOnly) {
	k.Helper()
	const name = "by-name"
	object := kind.resource + "/" + name
	const step = `jsonpath={.metadata.labels.step}{"\n"}`
	k.must("created", kind.manifest(name, map[string]string{"step": "created"}), "create", "-f", "-")
	k.must(name, "", "get", kind.resource)
	k.must("created\n", "", "get", object, "-o", step)

	cmd := k.Kubectl(k.Ctx, k.version, k.kubeconfig, "get", object, "--watch", "-o", step)
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		k.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		k.Fatal(err)
	}
	defer func() {
		cmd.Process.Kill() //nolint:errcheck // it may have ended
		cmd.Wait()         //nolint:errcheck // killed
	}()
	k.Count(1)
	seen := bufio.NewScanner(stdout)
	sees := func(want string) {
		k.Helper()
		if !seen.Scan() || seen.Text() != want {
			k.Fatalf("the watch saw %q, want %q (%v)", seen.Text(), want, seen.Err())
		}
	}
	sees("created")
	k.must("patched", "", "patch", object, "--type=merge", "-p", `{"metadata":{"labels":{"step":"patched"}}}`)
	sees("patched")
	k.must("condition met", "", "wait", object, "--for=jsonpath={.metadata.labels.step}=patched", "--timeout=10s")
	k.must("serverside-applied", kind.manifest(name, map[string]string{"step": "applied"}), "apply", "--server-side", "--force-conflicts", "-f", "-")
	sees("applied")
	k.must("deleted", "", "delete", object, "--wait")
	// Of what is gone already it says nothing, and is content.
	k.must("", "", "wait", object, "--for=delete", "--timeout=10s")
}

// must runs kubectl with alice's credential, and returns what it prints, which has to contain a part.
func (k kubectl) must(part, stdin string, args ...string) []byte {
	k.Helper()
	k.Count(1)
	cmd := k.Kubectl(k.Ctx, k.version, k.kubeconfig, args...)
	var stdout, stderr bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(stdin), &stdout, &stderr
	if err := cmd.Run(); err != nil || !strings.Contains(stdout.String(), part) {
		k.Fatalf("kubectl %s: %v, want %q in:\n%s%s", strings.Join(args, " "), err, part, stdout.String(), stderr.String())
	}
	return stdout.Bytes()
}

func (p peerOnly) manifest(name string, labels map[string]string) string {
	b, err := json.Marshal(map[string]any{
		"apiVersion": p.apiVersion, "kind": p.kind,
		"metadata": map[string]any{"name": name, "labels": labels}, "spec": p.spec,
	})
	if err != nil {
		panic(err) // not of these types
	}
	return string(b)
}

// primed is a kubeconfig for the old server's front with a cache of discovery documents that was filled at the new
// server's, as both share one address behind a VIP. Without merged documents kubectl learns of a peer-only API nowhere
// else.
func primed(s *suite.S, w world, version string) string {
	s.Helper()
	var kubeconfigs, caches [2]string
	for i, front := range []string{w.updated.Front, w.old.Front} {
		var err error
		if kubeconfigs[i], err = w.Kubeconfig("https://"+front, w.Token("alice")); err != nil {
			s.Fatal(err)
		}
		caches[i] = filepath.Join(kubeconfigs[i]+".cache", "discovery", strings.ReplaceAll(front, ":", "_"))
	}
	if out, err := w.Kubectl(s.Ctx, version, kubeconfigs[0], "api-resources").CombinedOutput(); err != nil {
		s.Fatalf("kubectl api-resources: %v: %s", err, out)
	}
	s.Count(1)
	if err := os.MkdirAll(filepath.Dir(caches[1]), 0o755); err != nil {
		s.Fatal(err)
	}
	if err := os.Rename(caches[0], caches[1]); err != nil {
		s.Fatal(err)
	}
	return kubeconfigs[1]
}
