package discovery

import (
	"bytes"
	"encoding/json"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	apidiscoveryv2 "k8s.io/api/apidiscovery/v2"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	clientdiscovery "k8s.io/client-go/discovery"
	"pgregory.net/rapid"
)

// recorded is the view of a kube-apiserver 1.37.2 with one CRD, example.test.
func recorded(t *testing.T) *View {
	t.Helper()
	v := &View{}
	for _, name := range []string{"api", "apis"} {
		body, err := os.ReadFile("testdata/merge/" + name + "-1.37.2.json")
		if err != nil {
			t.Fatal(err)
		}
		v.Groups = append(v.Groups, parse(t, name == "api", string(body)).groups...)
	}
	return v
}

func legacyJSON(t tester, document any) string {
	b, err := json.Marshal(document)
	if err != nil {
		t.Errorf("%v", err)
	}
	return string(b)
}

// The legacy documents of the same server, recorded at the same moment, are what becomes of its view. CRDs apart, whose
// entries it lists in an order that changes, they are so byte for byte, but for storageVersionHash.
func TestLegacyDocumentsAreThoseOfARealServer(t *testing.T) {
	body, err := os.ReadFile("testdata/merge/legacy-1.37.2.json")
	if err != nil {
		t.Fatal(err)
	}
	var documents map[string]json.RawMessage
	if err := json.Unmarshal(body, &documents); err != nil {
		t.Fatal(err)
	}
	v := Merge(recorded(t))
	for path, document := range documents {
		part := strings.Split(strings.Trim(path, "/"), "/")
		var got string
		switch {
		case path == "/apis":
			got = legacyJSON(t, v.GroupList())
		case len(part) == 2 && part[0] == "apis":
			got = legacyJSON(t, v.Group(part[1]))
		default:
			gv := schema.GroupVersion{Version: part[len(part)-1]}
			if part[0] == "apis" {
				gv.Group = part[1]
			}
			got = legacyJSON(t, v.ResourceList(gv))
			document = withoutHashes(t, document, gv.Group == "example.test")
		}
		if d := cmp.Diff(string(document), got); d != "" {
			t.Errorf("%s: %s", path, d)
		}
	}
}

// withoutHashes is a recorded APIResourceList without storageVersionHash, and sorted on demand.
func withoutHashes(t *testing.T, document []byte, sort bool) []byte {
	t.Helper()
	var list metav1.APIResourceList
	if err := json.Unmarshal(document, &list); err != nil {
		t.Fatal(err)
	}
	for i := range list.APIResources {
		r := &list.APIResources[i]
		r.StorageVersionHash = ""
		if sort {
			slices.Sort(r.Verbs)
			slices.Sort(r.ShortNames)
			slices.Sort(r.Categories)
		}
	}
	if sort {
		slices.SortFunc(list.APIResources, func(a, b metav1.APIResource) int { return strings.Compare(a.Name, b.Name) })
	}
	return []byte(legacyJSON(t, list))
}

func TestLegacyDocumentsOfWhatIsNotThereAreNone(t *testing.T) {
	v := Merge(view("/v1/pods g/v1/r"))
	if v.Group("h") != nil || v.Group("") != nil {
		t.Error("a group")
	}
	for _, gv := range []schema.GroupVersion{{Group: "g", Version: "v2"}, {Group: "h", Version: "v1"}, {Version: "v2"}} {
		if v.ResourceList(gv) != nil {
			t.Error(gv)
		}
	}
	if got := legacyJSON(t, Merge().GroupList()); got != `{"kind":"APIGroupList","apiVersion":"v1","groups":[]}` {
		t.Error(got)
	}
}

func TestAResourceThatIsOnlyAParentIsNotListed(t *testing.T) {
	v := view("g/v1/r/console g/v1/r-x/console")
	for i := range v.Groups[0].Versions[0].Resources {
		v.Groups[0].Versions[0].Resources[i].Verbs = nil
	}
	var got []string
	for _, r := range Merge(v).ResourceList(schema.GroupVersion{Group: "g", Version: "v1"}).APIResources {
		got = append(got, r.Name)
	}
	// In the order of paths, in which - is before /.
	if want := []string{"r-x/console", "r/console"}; !slices.Equal(got, want) {
		t.Error(got)
	}
}

// holdLegacyLaws checks that a client sees the same by either form: client-go makes the legacy form of the aggregated
// one by itself, though it leaves out what has no kind and gives subresources a singular name.
func holdLegacyLaws(t tester, merged *View) {
	t.Helper()
	_, lists, stale := clientdiscovery.SplitGroupsAndResources(apidiscoveryv2.APIGroupDiscoveryList{Items: merged.Groups})
	for _, g := range merged.Groups {
		if g.Name != "" && (merged.Group(g.Name) == nil || merged.Group(g.Name).PreferredVersion.Version != g.Versions[0].Version) {
			t.Errorf("%s has no legacy document", g.Name)
		}
		for _, v := range g.Versions {
			gv := schema.GroupVersion{Group: g.Name, Version: v.Version}
			list := merged.ResourceList(gv)
			if list == nil {
				t.Errorf("%s has no legacy document", gv)
				continue
			}
			if bytes.Contains([]byte(legacyJSON(t, list)), []byte("null")) {
				t.Errorf("null in %s", legacyJSON(t, list))
			}
			if _, ok := stale[gv]; ok {
				continue
			}
			theirs, ours := map[string]metav1.APIResource{}, map[string]metav1.APIResource{}
			for _, r := range lists[gv].APIResources {
				if r.Group == gv.Group && r.Version == gv.Version {
					r.Group, r.Version = "", ""
				}
				if strings.Contains(r.Name, "/") {
					r.SingularName = ""
				}
				theirs[r.Name] = r
			}
			for _, r := range list.APIResources {
				if _, ok := theirs[r.Name]; ok || r.Kind != "" {
					ours[r.Name] = r
				}
			}
			if !equality.Semantic.DeepEqual(theirs, ours) {
				t.Errorf("%s: client-go makes (-) what is (+): %s", gv, cmp.Diff(theirs, ours))
			}
		}
	}
	if n := len(merged.GroupList().Groups); n != len(merged.Groups) && n != len(merged.Groups)-1 {
		t.Errorf("%d of %d groups are listed", n, len(merged.Groups))
	}
}

func TestAClientSeesTheSameInBothForms(t *testing.T) {
	views := rapid.SliceOfN(anyView(), 0, 3)
	rapid.Check(t, func(t *rapid.T) { holdLegacyLaws(t, Merge(views.Draw(t, "views")...)) })
}
