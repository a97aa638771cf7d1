package documents

import (
	"slices"
	"strings"
	"testing"

	apidiscoveryv2 "k8s.io/api/apidiscovery/v2"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"xds-server/pkg/discovery"
)

// What was left out of a server's discovery, because it can't be used, is not called gone.
func TestADocumentOfWhichSomethingWasLeftOutIsNotGivenAsTheWholeOne(t *testing.T) {
	metrics := group("metrics.test", version(gv("metrics.test", "v1"), "Queue"), version(gv("metrics.test", "v2"), "Queue"))
	for name, c := range map[string]struct {
		partial schema.GroupVersion
		unread  []string
	}{
		"a resource": {gv("metrics.test", "v1"), []string{"/apis/metrics.test/v1"}},
		"a version":  {gv("metrics.test", ""), []string{"/apis/metrics.test"}},
		"a group":    {gv("", ""), nil},
	} {
		a, b := server("a", core(), apps("Deployment")), server("b", core(), metrics)
		a.View.Partial = map[schema.GroupVersion]bool{c.partial: true}
		for _, complete := range []bool{true, false} {
			s := Compile([]discovery.Observation{b, a}, complete)
			for _, path := range []string{"/api/v1", "/apis/apps/v1", "/apis/metrics.test", "/apis/metrics.test/v1", "/apis/metrics.test/v2"} {
				want := Merged
				if slices.Contains(c.unread, path) {
					want = Unread
				}
				if _, got := s.Find(path); got != want {
					t.Errorf("%s was left out: %s is %v", name, path, got)
				}
			}
			for _, path := range []string{"/apis", "/apis/"} {
				if got := get(t, s, path).Header.Get(Header); got != "partial" {
					t.Errorf("%s was left out: %s is %s", name, path, got)
				}
			}
			if got := get(t, s, "/apis/apps/v1").Header.Get(Header); got == "partial" == complete {
				t.Errorf("%s was left out: /apis/apps/v1 is %s", name, got)
			}
		}
	}
}

// Whatever else a version's documents lack, they have what all servers list of it.
func TestMetricsOfAnyNameAreListed(t *testing.T) {
	r := resource(gv("external.metrics.k8s.io", "v1beta1"), "Metric", "datadogmetric@ns:x")
	v := apidiscoveryv2.APIVersionDiscovery{Version: "v1beta1", Freshness: apidiscoveryv2.DiscoveryFreshnessCurrent, Resources: []apidiscoveryv2.APIResourceDiscovery{r}}
	s := Compile([]discovery.Observation{server("a", core(), apps("Deployment")), server("b", core(), group("external.metrics.k8s.io", v))}, true)
	for _, media := range []string{"application/json", "application/yaml"} {
		if got := string(body(t, get(t, s, "/apis/external.metrics.k8s.io/v1beta1", accept(media)))); !strings.Contains(got, "datadogmetric@ns:x") {
			t.Errorf("%s: %s", media, got)
		}
	}
}
