package discovery

import (
	"bytes"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sync/errgroup"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/restmapper"

	"xds-server/test/e2e/suite"
	"xds-server/test/lab"
	"xds-server/test/plane"
)

// testClients are acceptance 2 to 4: what decides by discovery.
func testClients(t *testing.T, p pair) {
	suite.Scenario(t, "A2-raw", "the groups and versions that documents list are exactly those that answer", func(s *suite.S) {
		listedAnswer(s, p)
	})
	suite.Scenario(t, "A2-kubectl", "kubectl of both versions prints the same through both fronts, with a cold and a warm cache: api-resources, api-versions, explain of every resource", func(s *suite.S) {
		for _, version := range []string{lab.Kube136, lab.Kube137} {
			s.Sub(version, func(s *suite.S) { kubectlPrints(s, p, version) })
		}
	})
	suite.Scenario(t, "A3", "Helm installs, upgrades and uninstalls a chart with objects of peer-only kinds through the old front", func(s *suite.S) {
		helm(s, p)
	})
	suite.Scenario(t, "A4", "client-go's discovery, mapper, dynamic and metadata clients find peer-only kinds through the old front, with aggregated discovery on and off", func(s *suite.S) {
		for _, legacy := range []bool{false, true} {
			s.Sub(fmt.Sprintf("legacy=%v", legacy), func(s *suite.S) { clientGo(s, p, legacy) })
		}
	})
	suite.Scenario(t, "A4-old@"+p.name, "client-go 0.26, which knows v2beta1 only, finds peer-only kinds and does not panic", func(s *suite.S) {
		oldClient(s, p)
	})
}

func listedAnswer(s *suite.S, p pair) {
	client := s.Client(p.Lab, p.Token("bob"), lab.HTTP2)
	var counts []int
	known := map[string]bool{} // to some server: its shared APIService objects too
	for _, n := range p.nodes {
		for _, g := range legacyGroups(s, p, n.DirectURL()).Groups {
			for _, v := range g.Versions {
				known[v.GroupVersion] = true
			}
		}
	}
	known["nobody.example.com/v1"], known["apps/v1beta1"] = true, true
	for _, n := range p.nodes {
		listed := map[string]bool{}
		groups := legacyGroups(s, p, n.FrontURL()).Groups
		for _, g := range groups {
			s.Want(client, "GET", n.FrontURL()+"/apis/"+g.Name, "", 200, `"APIGroup"`)
			for _, v := range g.Versions {
				listed[v.GroupVersion] = true
				s.Want(client, "GET", n.FrontURL()+"/apis/"+v.GroupVersion, "", 200, `"APIResourceList"`)
			}
		}
		for gv := range known {
			if !listed[gv] {
				s.Want(client, "GET", n.FrontURL()+"/apis/"+gv, "", 404, "")
			}
		}
		out := kubectl{S: s, pair: p, version: lab.Kube136, kubeconfig: kubeconfig(s, p, n)}.must("get", "--raw", "/apis")
		counts = append(counts, len(groups), strings.Count(out, `"preferredVersion"`))
	}
	if slices.Sort(counts); counts[0] != counts[len(counts)-1] || counts[0] < 20 {
		s.Errorf("the fronts list %v groups", counts)
	}
}

func legacyGroups(s *suite.S, p pair, url string) metav1.APIGroupList {
	s.Helper()
	a := s.Want(s.Client(p.Lab, p.Token("bob"), lab.HTTP1), "GET", url+"/apis", "", 200, "")
	var l metav1.APIGroupList
	decode(s, reply{status: a.Status, body: a.Body}, &l)
	return l
}

func kubeconfig(s *suite.S, p pair, n *plane.Node) string {
	s.Helper()
	file, err := p.Kubeconfig(n.FrontURL(), p.Token("alice"))
	if err != nil {
		s.Fatal(err)
	}
	return file
}

// kubectl runs kubectl commands, each of which has to succeed.
type kubectl struct {
	*suite.S
	pair
	version, kubeconfig string
}

func (k kubectl) run(args ...string) (string, error) {
	k.Count(1)
	cmd := k.Kubectl(k.Ctx, k.version, k.kubeconfig, args...)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("kubectl %s: %w: %s", strings.Join(args, " "), err, stderr.String())
	}
	return stdout.String(), nil
}

func (k kubectl) must(args ...string) string {
	k.Helper()
	out, err := k.run(args...)
	if err != nil {
		k.Fatal(err)
	}
	return out
}

func kubectlPrints(s *suite.S, p pair, version string) {
	client := s.Client(p.Lab, p.Token("bob"), lab.HTTP2)
	resources := map[string]string{} // to the version that they are asked in
	for _, g := range mustList(s, client, p.old.FrontURL(), "") {
		for _, v := range g.Versions {
			for _, r := range v.Resources {
				if r.ResponseKind == nil || r.ResponseKind.Kind == "" {
					continue
				}
				gv := strings.TrimPrefix(g.Name+"/"+v.Version, "/")
				resources[gv+" "+r.Resource] = gv
			}
		}
	}
	var mu sync.Mutex
	printed := map[string]string{}
	check := func(what, out string) error {
		mu.Lock()
		defer mu.Unlock()
		if before, ok := printed[what]; ok && before != out {
			return fmt.Errorf("%s prints something else:%s", what, firstDifference([]byte(before), []byte(out)))
		}
		printed[what] = out
		return nil
	}
	for _, n := range p.nodes {
		k := kubectl{s, p, version, kubeconfig(s, p, n)}
		for _, cache := range []string{"cold", "warm"} {
			for _, what := range []string{"api-resources", "api-versions"} {
				out := k.must(what)
				if err := check(what, out); err != nil {
					s.Errorf("%s cache at the front of %s: %v", cache, n.Name, err)
				}
				if what == "api-resources" && (!strings.Contains(out, "StorageVersionMigration") || !strings.Contains(out, "PodDisruptionBudget") || !strings.Contains(out, "CronJob")) {
					s.Errorf("api-resources at the front of %s lacks a peer-only kind:\n%s", n.Name, out)
				}
			}
		}
		// What was asked above has filled the cache; of a cold one each command has its own.
		explain := map[string]func() (kubectl, error){
			"warm": func() (kubectl, error) { return k, nil },
			"cold": func() (kubectl, error) {
				file, err := p.Kubeconfig(n.FrontURL(), p.Token("alice"))
				return kubectl{s, p, version, file}, err
			},
		}
		for cache, with := range explain {
			var g errgroup.Group
			g.SetLimit(3)
			for _, key := range slices.Sorted(maps.Keys(resources)) {
				g.Go(func() error {
					k, err := with()
					if err != nil {
						return err
					}
					gv, resource, _ := strings.Cut(key, " ")
					out, err := k.run("explain", resource, "--api-version="+gv)
					if err != nil {
						return err
					}
					return check("explain "+key, out)
				})
			}
			if err := g.Wait(); err != nil {
				s.Errorf("%s cache at the front of %s: %v", cache, n.Name, err)
			}
		}
	}
	fmt.Printf("       kubectl %s: %d resources explained at each front, with a warm and a cold cache\n", version, len(resources))
}

const chart = `apiVersion: storagemigration.k8s.io/v1
kind: StorageVersionMigration
metadata: {name: charted, labels: {step: {{ .Values.step | quote }}}}
spec: {resource: {group: "", resource: secrets}}
---
apiVersion: certificates.k8s.io/v1
kind: ClusterTrustBundle
metadata: {name: charted, labels: {step: {{ .Values.step | quote }}}}
spec: {trustBundle: {{ .Values.bundle | quote }}}
---
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata: {name: charted, labels: {step: {{ .Values.step | quote }}}}
spec: {minAvailable: 1, selector: {matchLabels: {a: b}}}
---
apiVersion: batch/v1
kind: CronJob
metadata: {name: charted, labels: {step: {{ .Values.step | quote }}}}
spec:
  schedule: "0 0 1 1 *"
  jobTemplate: {spec: {template: {spec: {restartPolicy: Never, containers: [{name: none, image: none}]}}}}
{{ if not (.Capabilities.APIVersions.Has "storagemigration.k8s.io/v1/StorageVersionMigration") }}{{ fail "no such API" }}{{ end }}
`

func helm(s *suite.S, p pair) {
	dir := s.TempDir()
	for name, content := range map[string]string{
		"Chart.yaml":          "apiVersion: v2\nname: peers\nversion: 0.1.0\n",
		"values.yaml":         "step: none\n",
		"templates/kind.yaml": chart,
		"more.yaml":           "bundle: |\n  " + strings.ReplaceAll(strings.TrimSpace(string(p.PKI.CA.CertPEM())), "\n", "\n  ") + "\n",
	} {
		file := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			s.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(content), 0o644); err != nil {
			s.Fatal(err)
		}
	}
	config := kubeconfig(s, p, p.old)
	run := func(args ...string) {
		s.Helper()
		s.Count(1)
		if out, err := p.ClientCommand(s.Ctx, lab.Helm, config, args...).CombinedOutput(); err != nil {
			s.Fatalf("helm %s: %v\n%s", strings.Join(args, " "), err, out)
		}
	}
	client := s.Client(p.Lab, p.Token("alice"), lab.HTTP2)
	objects := map[string]*plane.Node{
		migrations + "/charted":   p.updated,
		trustBundles + "/charted": p.updated,
		"/apis/policy/v1/namespaces/default/poddisruptionbudgets/charted": p.updated,
		"/apis/batch/v1/namespaces/default/cronjobs/charted":              p.old,
	}
	check := func(status int, part string) {
		s.Helper()
		for path, n := range objects {
			s.Want(client, "GET", n.DirectURL()+path, "", status, part)
		}
	}
	values := filepath.Join(dir, "more.yaml")
	run("install", "peers", dir, "--namespace", "default", "--values", values, "--set", "step=installed")
	check(200, `"step":"installed"`)
	run("upgrade", "peers", dir, "--namespace", "default", "--values", values, "--set", "step=upgraded")
	check(200, `"step":"upgraded"`)
	run("uninstall", "peers", "--namespace", "default")
	check(404, "")
}

func clientGo(s *suite.S, p pair, legacy bool) {
	config := &rest.Config{
		Host: p.old.FrontURL(), BearerToken: p.Token("alice").Token, QPS: -1,
		TLSClientConfig: rest.TLSClientConfig{CAData: p.PKI.CA.CertPEM()},
	}
	disco, err := discovery.NewDiscoveryClientForConfig(config)
	if err != nil {
		s.Fatal(err)
	}
	disco.UseLegacyDiscovery = legacy
	groups, err := restmapper.GetAPIGroupResources(disco)
	if err != nil {
		s.Fatal(err)
	}
	mapper := restmapper.NewDiscoveryRESTMapper(groups)
	_, preferred, err := discovery.ServerGroupsAndResources(disco)
	if err != nil || len(preferred) < 20 {
		s.Errorf("%d lists of resources: %v", len(preferred), err)
	}
	dynamicClient, err := dynamic.NewForConfig(config)
	if err != nil {
		s.Fatal(err)
	}
	metadataClient, err := metadata.NewForConfig(config)
	if err != nil {
		s.Fatal(err)
	}
	for _, kind := range []schema.GroupVersionKind{
		{Group: "storagemigration.k8s.io", Version: "v1", Kind: "StorageVersionMigration"},
		{Group: "certificates.k8s.io", Version: "v1", Kind: "ClusterTrustBundle"},
		{Group: "certificates.k8s.io", Version: "v1", Kind: "PodCertificateRequest"},
		{Group: "resource.k8s.io", Version: "v1", Kind: "DeviceTaintRule"},
		{Group: "policy", Version: "v1", Kind: "PodDisruptionBudget"},
		{Group: "batch", Version: "v1", Kind: "CronJob"},
	} {
		m, err := mapper.RESTMapping(kind.GroupKind(), kind.Version)
		if err != nil {
			s.Errorf("%s: %v", kind, err)
			continue
		}
		if _, err := dynamicClient.Resource(m.Resource).List(s.Ctx, metav1.ListOptions{}); err != nil {
			s.Errorf("listing %s: %v", m.Resource, err)
		}
		if _, err := metadataClient.Resource(m.Resource).List(s.Ctx, metav1.ListOptions{}); err != nil {
			s.Errorf("listing the metadata of %s: %v", m.Resource, err)
		}
		s.Count(2)
	}
	if m, err := mapper.ResourceFor(schema.GroupVersionResource{Resource: "clustertrustbundles"}); err != nil || m.Version != "v1" {
		s.Errorf("clustertrustbundles is %v: %v", m, err)
	}
	if _, err := disco.OpenAPISchema(); err != nil {
		s.Errorf("OpenAPI v2: %v", err)
	}
	paths, err := disco.OpenAPIV3().Paths()
	if err != nil {
		s.Fatal(err)
	}
	gv, ok := paths["apis/storagemigration.k8s.io/v1"]
	if !ok {
		s.Fatal("OpenAPI v3 has no storagemigration.k8s.io/v1")
	}
	if b, err := gv.Schema(asJSON); err != nil || !bytes.Contains(b, []byte("storageversionmigrations")) {
		s.Errorf("OpenAPI v3 of storagemigration.k8s.io/v1: %v, %d bytes", err, len(b))
	}
	s.Count(5)
}

// oldClient runs client-go 0.26's discovery at each front.
func oldClient(s *suite.S, p pair) {
	gv, resource, _ := strings.Cut(strings.TrimSuffix(p.peerOnly, ":list"), "/")
	version, resource, _ := strings.Cut(resource, "/")
	want := gv + "/" + version + " " + resource + " "
	var outputs []string
	for _, n := range p.nodes {
		s.Count(1)
		out, err := p.ClientCommand(s.Ctx, lab.OldDiscovery, kubeconfig(s, p, n)).CombinedOutput()
		if err != nil || !strings.Contains(string(out), want) {
			s.Fatalf("at the front of %s: %v, want %q in:\n%.3000s", n.Name, err, want, out)
		}
		lines := strings.Split(string(out), "\n") // which it prints in any order
		slices.Sort(lines)
		outputs = append(outputs, strings.Join(lines, "\n"))
	}
	if outputs[0] != outputs[1] {
		s.Errorf("the fronts differ:%s", firstDifference([]byte(outputs[0]), []byte(outputs[1])))
	}
}
