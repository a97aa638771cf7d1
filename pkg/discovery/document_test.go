package discovery

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"
	apidiscoveryv2 "k8s.io/api/apidiscovery/v2"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

func gv(group, version string) schema.GroupVersion {
	return schema.GroupVersion{Group: group, Version: version}
}

func parse(t *testing.T, core bool, body string) document {
	t.Helper()
	d, err := parseDocument(strings.NewReader(body), core)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// doc wraps groups in a list.
func doc(items string) string {
	return `{"kind":"APIGroupDiscoveryList","apiVersion":"apidiscovery.k8s.io/v2","metadata":{},"items":[` + items + `]}`
}

func TestNothingOfAResourceIsLost(t *testing.T) {
	full := groups("apps/v1/deployments")
	r := &full[0].Versions[0].Resources[0]
	r.SingularResource, r.ShortNames, r.Categories = "deployment", []string{"deploy"}, []string{"all"}
	r.ResponseKind = gvk("apps", "v1", "Deployment")
	r.Subresources = []apidiscoveryv2.APISubresourceDiscovery{{Subresource: "scale", ResponseKind: gvk("autoscaling", "v1", "Scale"), Verbs: []string{"get", "patch"}}}
	r.Subresources[0].AcceptedTypes = append(r.Subresources[0].AcceptedTypes, *gvk("autoscaling", "v1", "Scale"))
	if d := gocmp.Diff(full, parse(t, false, string(render(full))).groups); d != "" {
		t.Error(d)
	}
}

func TestAStaleVersionStaysMarked(t *testing.T) {
	d := parse(t, false, doc(`{"metadata":{"name":"a.b"},"versions":[{"version":"v1","freshness":"Stale"}]}`))
	if f := d.groups[0].Versions[0].Freshness; f != apidiscoveryv2.DiscoveryFreshnessStale {
		t.Errorf("freshness %q", f)
	}
}

func TestNamesThatKubernetesCannotHaveNeverReachAView(t *testing.T) {
	const good = `{"metadata":{"name":"good"},"versions":[{"version":"v1","resources":[{"resource":"r"}]}]}`
	quote := func(name string) []byte { b, _ := json.Marshal(name); return b }
	group := func(name string) string { return doc(fmt.Sprintf(`{"metadata":{"name":%s}},%s`, quote(name), good)) }
	version := func(name string) string {
		return doc(fmt.Sprintf(`{"metadata":{"name":"good"},"versions":[{"version":%s},{"version":"v1","resources":[{"resource":"r"}]}]}`, quote(name)))
	}
	resource := func(name string) string {
		return doc(fmt.Sprintf(`{"metadata":{"name":"good"},"versions":[{"version":"v1","resources":[{"resource":%s},{"resource":"r"}]}]}`, quote(name)))
	}
	sub := func(name string) string {
		return doc(fmt.Sprintf(`{"metadata":{"name":"good"},"versions":[{"version":"v1","resources":[{"resource":"r","subresources":[{"subresource":%s}]}]}]}`, quote(name)))
	}
	for _, c := range []struct {
		name string
		body string
	}{
		{"group with a slash", group("a/b")}, {"group in upper case", group("Apps")}, {"group with a blank", group("a b")},
		{"group with a control character", group("a\x01")}, {"group with no name outside the core", group("")}, {"group of 300 letters", group(strings.Repeat("a", 300))},
		{"version with a slash", version("v1/x")}, {"no version", version("")}, {"version with a dot", version("v1.1")}, {"version that is a path", version("..")},
		{"no resource", resource("")}, {"resource with a slash", resource("pods/x")}, {"resource that is a path", resource("..")},
		{"resource with a percent sign", resource("a%2fb")}, {"resource with a question mark", resource("a?b")},
		{"resource that is not ASCII", resource("ä")}, {"resource with a blank", resource("a b")}, {"resource with a line end", resource("a\nb")},
		{"resource with a quote", resource(`a"b`)}, {"resource with a backslash", resource(`a\b`)}, {"resource with a hash", resource("a#b")},
		{"resource of 2,000 letters", resource(strings.Repeat("a", 2000))}, {"resource with DEL", resource("a\x7f")},
		{"no subresource", sub("")}, {"subresource with an empty segment", sub("a//b")}, {"subresource that climbs", sub("a/../b")},
		{"subresource with a percent sign", sub("a%00")}, {"subresource with a tab", sub("a\tb")},
	} {
		t.Run(c.name, func(t *testing.T) {
			d := parse(t, false, c.body)
			if got := words(d.groups); got != "good/v1/r" {
				t.Errorf("view: %s", got)
			}
			if d.dropped[reasonInvalid] != 1 || d.first == "" || len(d.partial) != 1 {
				t.Errorf("it was not counted: %+v %q %v", d.dropped, d.first, d.partial)
			}
		})
	}
}

func TestNamesThatAreOddButRealAreKept(t *testing.T) {
	odd := []string{
		"custom.metrics.k8s.io/v1beta1/pods/http_requests_per_second", "custom.metrics.k8s.io/v1beta1/jobs.batch/" + strings.Repeat("m", 500),
		"external.metrics.k8s.io/v1beta1/s0-Queue_Length",
		"external.metrics.k8s.io/v1beta1/datadogmetric@ns:x", "external.metrics.k8s.io/v1beta1/pubsub.googleapis.com|topic|size",
		"external.metrics.k8s.io/v1beta1/_up{job=a,b!=c}", "external.metrics.k8s.io/v1beta1/a+b~c",
		"subresources.kubevirt.io/v1/virtualmachineinstances/sev/fetchcertchain",
	}
	d := parse(t, false, string(render(groups(odd...))))
	for _, want := range odd {
		if !strings.Contains(" "+words(d.groups)+" ", " "+want+" ") {
			t.Errorf("%s is missing in %s", want, words(d.groups))
		}
	}
}

func TestOfTwoEqualNamesTheFirstCounts(t *testing.T) {
	d := parse(t, false, doc(`
		{"metadata":{"name":"g"},"versions":[
			{"version":"v1","resources":[{"resource":"a","scope":"Cluster","subresources":[{"subresource":"s"},{"subresource":"s"}]},{"resource":"a","scope":"Namespaced"}]},
			{"version":"v1","resources":[{"resource":"b"}]}]},
		{"metadata":{"name":"g"},"versions":[{"version":"v2","resources":[{"resource":"c"}]}]}`))
	if got := words(d.groups); got != "g/v1/a g/v1/a/s" {
		t.Errorf("view: %s", got)
	}
	if d.groups[0].Versions[0].Resources[0].Scope != apidiscoveryv2.ScopeCluster || d.dropped[reasonDuplicate] != 4 {
		t.Errorf("%+v", d)
	}
}

func TestTheTwoDocumentsDoNotMix(t *testing.T) {
	both := string(render(groups("/v1/pods", "apps/v1/deployments")))
	if got := words(parse(t, true, both).groups); got != "/v1/pods" {
		t.Errorf("/api: %s", got)
	}
	if got := words(parse(t, false, both).groups); got != "apps/v1/deployments" {
		t.Errorf("/apis: %s", got)
	}
}

func TestTheOrderOfTheServerStays(t *testing.T) {
	order := "z/v1/r b/v2/y b/v2/x b/v1/r a/v1/r"
	if got := words(parse(t, false, string(render(groups(strings.Fields(order)...)))).groups); got != order {
		t.Errorf("got %s", got)
	}
}

// withMetrics is a document of a metrics API as kube-aggregator makes it: its metrics are subresources of what they measure.
func withMetrics(n int) []byte {
	g := groups("custom.metrics.k8s.io/v1beta1/pods", "other.io/v1/r/s")
	for i := range n {
		r := &g[0].Versions[0].Resources[0]
		r.Subresources = append(r.Subresources, apidiscoveryv2.APISubresourceDiscovery{
			Subresource: fmt.Sprintf("http_requests_per_second_and_path_%d", i), ResponseKind: gvk("", "v1beta1", "MetricValueList"), Verbs: []string{"get"}})
	}
	return render(g)
}

func TestAMetricsAPIIsReadWholeHoweverManyMetricsItHas(t *testing.T) {
	for _, n := range []int{300, 9000, 100_000} {
		d := parse(t, false, string(withMetrics(n)))
		if got := len(d.groups[0].Versions[0].Resources[0].Subresources); got != n || len(d.dropped) > 0 || len(d.partial) > 0 {
			t.Errorf("%d of %d: %v %v", got, n, d.dropped, d.partial)
		}
	}
}

// What an aggregated API lists beyond anything real costs its server neither its view nor its other versions.
func TestWhatIsBeyondAnythingRealIsLeftOutAndItsVersionSaysSo(t *testing.T) {
	many := strings.TrimSuffix(strings.Repeat(`"get",`, 300), ",")
	for name, c := range map[string]struct{ body, want string }{
		"verbs": {doc(`{"metadata":{"name":"g"},"versions":[{"version":"v1","resources":[{"resource":"a","verbs":[` + many + `]},{"resource":"b"}]}]}`), "g/v1/b"},
		"verbs of a subresource": {doc(`{"metadata":{"name":"g"},"versions":[{"version":"v1","resources":[{"resource":"a","subresources":[
			{"subresource":"s","verbs":[` + many + `]},{"subresource":"t"}]}]}]}`), "g/v1/a g/v1/a/t"},
	} {
		d := parse(t, false, c.body)
		if got := words(d.groups); got != c.want || !d.partial[gv("g", "v1")] || d.dropped[reasonOversized] != 1 {
			t.Errorf("%s: %s %v %v", name, got, d.partial, d.dropped)
		}
	}
	d := parse(t, false, string(withMetrics(maxSubresources+5)))
	if n := len(d.groups[0].Versions[0].Resources[0].Subresources); n != maxSubresources || d.dropped[reasonOversized] != 6 || !d.partial[gv("custom.metrics.k8s.io", "v1beta1")] {
		t.Errorf("%d are kept, left out: %v, partial: %v", n, d.dropped, d.partial)
	}
}

// What is left out would look gone in a document made of the rest.
func TestAViewTellsWhichDocumentsItDoesNotKnowWhole(t *testing.T) {
	version := func(resources string) string {
		return doc(`{"metadata":{"name":"g"},"versions":[{"version":"v1","resources":[` + resources + `]},{"version":"v2"}]}`)
	}
	for name, c := range map[string]struct{ body, want string }{
		"nothing is left out":       {version(`{"resource":"a"}`), ""},
		"a resource":                {version(`{"resource":"a"},{"resource":"b b"}`), "g/v1"},
		"a subresource":             {version(`{"resource":"a","subresources":[{"subresource":"b b"}]}`), "g/v1"},
		"the same once more":        {version(`{"resource":"a","subresources":[{"subresource":"s"},{"subresource":"s"}]},{"resource":"a","subresources":[{"subresource":"s"}]}`), ""},
		"the same name, and more":   {version(`{"resource":"a"},{"resource":"a","subresources":[{"subresource":"s"}]}`), "g/v1"},
		"a subresource, otherwise":  {version(`{"resource":"a","subresources":[{"subresource":"s"},{"subresource":"s","verbs":["get"]}]}`), "g/v1"},
		"a version":                 {doc(`{"metadata":{"name":"g"},"versions":[{"version":"v 1"},{"version":"v2"}]}`), "g"},
		"a version once more":       {doc(`{"metadata":{"name":"g"},"versions":[{"version":"v1"},{"version":"v1"}]}`), "g/v1"},
		"a group once more":         {doc(`{"metadata":{"name":"g"},"versions":[{"version":"v1"}]},{"metadata":{"name":"g"},"versions":[{"version":"v2"}]}`), "g g/v2"},
		"a group":                   {doc(`{"metadata":{"name":"a b"},"versions":[{"version":"v1"}]}`), "whole"},
		"the name comes at the end": {doc(`{"versions":[{"resources":[{"resource":"b b"}],"version":"v1"}],"metadata":{"name":"g"}}`), "g/v1"},
	} {
		var got []string
		for p := range parse(t, false, c.body).partial {
			got = append(got, cmp.Or(strings.TrimSuffix(p.Group+"/"+p.Version, "/"), "whole"))
		}
		slices.Sort(got)
		if strings.Join(got, " ") != c.want {
			t.Errorf("%s: %v, want %s", name, got, c.want)
		}
	}
}

// FuzzDocument: whatever a server sends, the parser ends without a panic; and what it accepts holds good names only,
// each once, and is the same when it is written and read again.
func FuzzDocument(f *testing.F) {
	for _, core := range []bool{true, false} {
		f.Add(core, render(groups("/v1/pods", "/v1/pods/log", "apps/v1/deployments", "apps/v1beta1/deployments")))
	}
	files, err := filepath.Glob("testdata/documents/*.json")
	if err != nil || len(files) == 0 {
		f.Fatalf("no documents to begin with: %v", err)
	}
	for _, file := range files {
		body, err := os.ReadFile(file)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(strings.Contains(file, "api-"), body)
	}
	f.Fuzz(func(t *testing.T, core bool, body []byte) {
		first, err := parseDocument(bytes.NewReader(body), core)
		if err != nil {
			return
		}
		seen := map[string]bool{}
		once := func(key string, ok bool) {
			if !ok || seen[key] {
				t.Errorf("%q is in the view", key)
			}
			seen[key] = true
		}
		for _, g := range first.groups {
			once(g.Name, validGroup(g.Name) && core == (g.Name == ""))
			for _, v := range g.Versions {
				once(g.Name+" "+v.Version, validVersion(v.Version))
				for _, r := range v.Resources {
					once(g.Name+" "+v.Version+" "+r.Resource, validResource(r.Resource))
					for _, s := range r.Subresources {
						once(g.Name+" "+v.Version+" "+r.Resource+" "+s.Subresource, validSubresource(s.Subresource))
					}
				}
			}
		}
		again, err := parseDocument(bytes.NewReader(render(first.groups)), core)
		if err != nil {
			t.Fatalf("what was accepted can't be read again: %v", err)
		}
		if len(again.dropped) != 0 || !bytes.Equal(render(again.groups), render(first.groups)) {
			t.Errorf("it changed when it was read again: %v", again.dropped)
		}
	})
}

// A real server's document is read as encoding/json would, which has no limits and drops nothing.
func TestARealDocumentIsReadWhole(t *testing.T) {
	files, err := filepath.Glob("testdata/documents/*.json")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		body, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		var want apidiscoveryv2.APIGroupDiscoveryList
		if err := json.Unmarshal(body, &want); err != nil {
			t.Fatal(err)
		}
		for i := range want.Items {
			want.Items[i].TypeMeta, want.Items[i].CreationTimestamp = apidiscoveryv2.APIGroupDiscovery{}.TypeMeta, apidiscoveryv2.APIGroupDiscovery{}.CreationTimestamp
		}
		got := parse(t, strings.Contains(file, "api-"), string(body))
		if !reflect.DeepEqual(want.Items, got.groups) || len(got.dropped) != 0 {
			t.Errorf("%s: %s", file, gocmp.Diff(want.Items, got.groups))
		}
	}
}
