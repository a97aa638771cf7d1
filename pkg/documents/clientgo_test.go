package documents

import (
	"net/http"
	"net/http/httptest"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/runtime/schema"
	clientdiscovery "k8s.io/client-go/discovery"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/restmapper"

	"xds-server/pkg/discovery"
)

// client-go finds everything that some server serves, whichever form of discovery it uses.
func TestClientGoFindsEverything(t *testing.T) {
	mine := discovery.Merge(recorded(t))
	a := discovery.Observation{View: mine, Documents: &discovery.Documents{}}
	b := server("b", core(), group("new.test", version(gv("new.test", "v1"), "Gadget")))
	s := Compile([]discovery.Observation{a, b}, true)
	front := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if h, verdict := s.Find(req.URL.Path); verdict == Merged {
			h.ServeHTTP(w, req)
			return
		}
		http.NotFound(w, req)
	}))
	defer front.Close()

	merged := discovery.Merge(a.View, b.View)
	var want []string
	for _, g := range merged.Groups {
		for _, v := range g.Versions {
			list := merged.ResourceList(gv(g.Name, v.Version))
			for _, r := range list.APIResources {
				want = append(want, list.GroupVersion+" "+r.Name)
			}
		}
	}
	slices.Sort(want)

	for name, legacy := range map[string]bool{"aggregated": false, "legacy": true} {
		client, err := clientdiscovery.NewDiscoveryClientForConfig(&rest.Config{Host: front.URL})
		if err != nil {
			t.Fatal(err)
		}
		client.UseLegacyDiscovery = legacy
		_, lists, err := client.ServerGroupsAndResources()
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		var got []string
		for _, list := range lists {
			for _, r := range list.APIResources {
				got = append(got, list.GroupVersion+" "+r.Name)
			}
		}
		slices.Sort(got)
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%.2000s", name, diff)
		}
		resources, err := restmapper.GetAPIGroupResources(client)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		mapping, err := restmapper.NewDiscoveryRESTMapper(resources).RESTMapping(schema.GroupKind{Group: "new.test", Kind: "Gadget"})
		if err != nil || mapping.Resource != gv("new.test", "v1").WithResource("gadgets") {
			t.Errorf("%s: %v, %v", name, mapping, err)
		}
	}
}
