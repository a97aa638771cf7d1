package documents

import (
	"net/http"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	apidiscoveryv2 "k8s.io/api/apidiscovery/v2"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"xds-server/pkg/discovery"
	"xds-server/pkg/peers"
)

func unread(name string) discovery.Observation {
	return discovery.Observation{Server: peers.Server{Name: name}}
}

// lists is a server whose legacy /apis lists more than it serves.
func lists(o discovery.Observation, more ...string) discovery.Observation {
	documents := *o.Documents
	for _, group := range more {
		documents.Listed = append(slices.Clone(documents.Listed), gv(group, "v1"))
	}
	o.Documents = &documents
	return o
}

// hashed is a server that stores a resource in another way.
func hashed(o discovery.Observation, hash string) discovery.Observation {
	o.Documents.StorageVersionHashes[gv("apps", "v1")]["deployments"] = hash
	return o
}

func stale(groupName, versionName string) apidiscoveryv2.APIGroupDiscovery {
	return group(groupName, apidiscoveryv2.APIVersionDiscovery{
		Version: versionName, Freshness: apidiscoveryv2.DiscoveryFreshnessStale})
}

func groupNames(list metav1.APIGroupList) (names []string) {
	for _, g := range list.Groups {
		names = append(names, g.Name)
	}
	return names
}

func TestSlashesAtTheEndAreAnsweredAsAServerAnswersThem(t *testing.T) {
	s := Compile([]discovery.Observation{server("a", core(), apps("Deployment"))}, true)
	for path, want := range map[string]Verdict{
		"/api": Merged, "/api/": Merged, "/api/v1": Merged, "/api/v1/": Merged, "/api/v1//": Merged,
		"/apis": Merged, "/apis/": Merged, "/apis//": Merged, "/apis/apps": Merged, "/apis/apps/": Merged,
		"/apis/apps/v1": Merged, "/apis/apps/v1/": Merged,
		"": Absent, "/": Absent, "api": Absent, "/api/v2": Absent, "/apis/none": Absent, "/apis/apps/v2": Absent,
		"/apis//v1": Absent, "/apis/apps/v1/deployments": Absent, "/healthz": Absent, "//apis": Absent, "/API": Absent,
	} {
		handler, got := s.Find(path)
		if got != want {
			t.Errorf("%q is %v, want %v", path, got, want)
		}
		if (handler != nil) != (got == Merged) {
			t.Errorf("%q is %v, and there is a handler: %t", path, got, handler != nil)
		}
	}
	if got := get(t, s, "/apis/", accept(asV2)).StatusCode; got != http.StatusNotAcceptable {
		t.Errorf("/apis/ in the aggregated form: %d", got)
	}
	if got := get(t, s, "/api/", accept(asV2)).StatusCode; got != http.StatusOK {
		t.Errorf("/api/ in the aggregated form: %d", got)
	}
}

// What only an unread server can serve is neither hidden nor made up.
func TestWhatIsListedStaysListedUntilAllServersAreRead(t *testing.T) {
	a := lists(server("a", core(), apps("Deployment")), "new.test")
	partial := Compile([]discovery.Observation{a, unread("b")}, false)
	if !partial.Differ() {
		t.Error("no server shows new.test as Stale, and still none differs")
	}
	res := get(t, partial, "/apis", accept(asV2))
	if got := res.Header.Get(Header); got != "partial" {
		t.Errorf("%s: %s", Header, got)
	}
	groups := decode[apidiscoveryv2.APIGroupDiscoveryList](t, res).Items
	want := apidiscoveryv2.APIVersionDiscovery{Version: "v1", Freshness: apidiscoveryv2.DiscoveryFreshnessStale}
	if len(groups) != 2 || groups[1].Name != "new.test" && groups[0].Name != "new.test" {
		t.Fatalf("%v", groups)
	}
	for _, g := range groups {
		if g.Name == "new.test" && !cmp.Equal(g.Versions, []apidiscoveryv2.APIVersionDiscovery{want}) {
			t.Errorf("%v", g.Versions)
		}
	}
	names := groupNames(decode[metav1.APIGroupList](t, get(t, partial, "/apis")))
	if slices.Sort(names); !slices.Equal(names, []string{"apps", "new.test"}) {
		t.Errorf("%v", names)
	}
	if _, verdict := partial.Find("/apis/new.test/v1"); verdict != Unread {
		t.Errorf("its resources are %v", verdict)
	}
	if got := get(t, partial, "/apis/new.test").StatusCode; got != http.StatusOK {
		t.Errorf("its group: %d", got)
	}
}

func TestWhatIsListedOnlyIsNobodysPreference(t *testing.T) {
	beta, newer := gv("x.test", "v1beta1"), gv("x.test", "v1")
	a := server("a", core(), group("x.test", version(beta, "Thing"), version(newer, "Thing")))
	for _, listed := range []string{"v1alpha1", "v2"} {
		o := lists(a)
		o.Documents.Listed = append(slices.Clone(a.Documents.Listed), gv("x.test", listed))
		s := Compile([]discovery.Observation{o, unread("b")}, false)
		got := decode[metav1.APIGroup](t, get(t, s, "/apis/x.test"))
		if got.PreferredVersion.Version != "v1beta1" || len(got.Versions) != 3 || got.Versions[2].Version != listed {
			t.Errorf("with %s listed: %+v", listed, got)
		}
	}
}

func TestWhatNobodyServesIsListedNowhereOnceAllServersAreRead(t *testing.T) {
	s := Compile([]discovery.Observation{lists(server("a", core(), apps("Deployment")), "gone.test", "apps")}, true)
	if !s.Differ() {
		t.Error("the server lists what nobody serves, and still doesn't differ")
	}
	for _, target := range []string{"/apis", "/apis/"} {
		if names := groupNames(decode[metav1.APIGroupList](t, get(t, s, target))); !slices.Equal(names, []string{"apps"}) {
			t.Errorf("%s: %v", target, names)
		}
	}
	res := get(t, s, "/apis/gone.test")
	if got := string(body(t, res)); res.StatusCode != http.StatusNotFound || got != "404 page not found\n" {
		t.Errorf("/apis/gone.test: %d %s", res.StatusCode, got)
	}
	if _, verdict := s.Find("/apis/gone.test/v1"); verdict != Absent {
		t.Errorf("/apis/gone.test/v1: %v", verdict)
	}
}

func TestADocumentThatNobodyIsKnownToHaveIsAbsentOnlyWhenEveryServerWasRead(t *testing.T) {
	for _, path := range []string{"/apis/late.test/v1", "/apis/late.test", "/apis/late.test/", "/api/v2"} {
		if _, verdict := Compile([]discovery.Observation{server("a", core())}, true).Find(path); verdict != Absent {
			t.Errorf("%s is %v when every server was read", path, verdict)
		}
		if _, verdict := Compile([]discovery.Observation{server("a", core()), unread("b")}, false).Find(path); verdict != Unread {
			t.Errorf("%s is %v while a server was never read", path, verdict)
		}
	}
}

func TestOneServersCurrentBeatsAnothersStale(t *testing.T) {
	metrics := group("metrics.k8s.io", version(gv("metrics.k8s.io", "v1beta1"), "Node"))
	s := Compile([]discovery.Observation{server("a", core(), stale("metrics.k8s.io", "v1beta1")), server("b", core(), metrics)}, true)
	list := decode[metav1.APIResourceList](t, get(t, s, "/apis/metrics.k8s.io/v1beta1"))
	if len(list.APIResources) == 0 {
		t.Error("no resources")
	}
	s = Compile([]discovery.Observation{server("a", core(), stale("metrics.k8s.io", "v1beta1"))}, true)
	if _, verdict := s.Find("/apis/metrics.k8s.io/v1beta1"); verdict != Unread {
		t.Errorf("Stale everywhere: %v", verdict)
	}
	if s.Differ() {
		t.Error("the only server differs")
	}
}

func TestNothingIsMadeUpOfServersThatWereNeverRead(t *testing.T) {
	withDocuments := lists(server("b"), "apps")
	withDocuments.View = nil
	for name, observations := range map[string][]discovery.Observation{
		"no server": nil, "none read": {unread("a"), unread("b")}, "one with documents alone": {withDocuments},
	} {
		s := Compile(observations, false)
		for path, want := range map[string]Verdict{"/api": Absent, "/apis": Absent, "/apis/": Absent, "/api/v1": Unread, "/apis/x": Unread} {
			if _, verdict := s.Find(path); verdict != want {
				t.Errorf("%s: %s is %v, want %v", name, path, verdict, want)
			}
		}
		if s.Differ() {
			t.Errorf("%s: there is a difference", name)
		}
	}
	if _, verdict := Compile([]discovery.Observation{withDocuments}, false).Find("/apis/apps/v1"); verdict != Unread {
		t.Errorf("a version that is listed: %v", verdict)
	}
}

// The filter is in the path only while clients would see another document without it.
func TestServersDifferOnlyWhereClientsCanSeeIt(t *testing.T) {
	a := func() discovery.Observation { return server("a", core(), apps("Deployment")) }
	b := func() discovery.Observation { return server("b", core(), apps("Deployment")) }
	without := func(o discovery.Observation) discovery.Observation { o.Documents = nil; return o }
	reversed := server("b", apps("Deployment"), core())
	slices.Reverse(reversed.View.Groups)
	unhashed := b()
	delete(unhashed.Documents.StorageVersionHashes, gv("apps", "v1"))
	unlisted := b()
	unlisted.Documents.Listed = nil
	for name, c := range map[string]struct {
		observations []discovery.Observation
		incomplete   bool
		want         bool
	}{
		"one server":                             {observations: []discovery.Observation{a()}},
		"equal servers, but for their addresses": {observations: []discovery.Observation{a(), b()}},
		"in another order":                       {observations: []discovery.Observation{a(), reversed}},
		"documents not read yet":                 {observations: []discovery.Observation{a(), without(b())}},
		"hashes not read yet":                    {observations: []discovery.Observation{a(), unhashed}},
		"legacy list not read yet":               {observations: []discovery.Observation{a(), unlisted}},
		"one not read, nothing else known":       {observations: []discovery.Observation{a(), unread("b")}, incomplete: true, want: true},
		"one expired":                            {observations: []discovery.Observation{a(), {Server: peers.Server{Name: "b"}, Expired: true}}},
		"another resource":                       {observations: []discovery.Observation{a(), server("b", core(), apps("Deployment", "Rollout"))}, want: true},
		"another group":                          {observations: []discovery.Observation{a(), server("b", core())}, want: true},
		"another storage version":                {observations: []discovery.Observation{a(), hashed(b(), "another")}, want: true},
		"both list what nobody serves":           {observations: []discovery.Observation{lists(a(), "gone.test"), lists(b(), "gone.test")}, want: true},
		"one lacks in its list what it serves":   {observations: []discovery.Observation{a(), lists(server("b", core()), "else.test")}, want: true},
	} {
		if got := Compile(c.observations, !c.incomplete).Differ(); got != c.want {
			t.Errorf("%s: %t, want %t", name, got, c.want)
		}
	}
}

// A server that can't be reached counts with what was last read of it, as long as that is given.
func TestWhatIsHeldStaysInEveryDocument(t *testing.T) {
	away := server("b", core(), group("new.test", version(gv("new.test", "v1"), "Gadget")))
	away.Ready, away.Gone = false, true
	s := Compile([]discovery.Observation{server("a", core(), apps("Deployment")), away}, true)
	for _, g := range decode[apidiscoveryv2.APIGroupDiscoveryList](t, get(t, s, "/apis", accept(asV2))).Items {
		if g.Versions[0].Freshness != apidiscoveryv2.DiscoveryFreshnessCurrent || len(g.Versions[0].Resources) == 0 {
			t.Errorf("%v", g)
		}
	}
	list := decode[metav1.APIResourceList](t, get(t, s, "/apis/new.test/v1"))
	if len(list.APIResources) != 2 || list.APIResources[0].StorageVersionHash != "hash-of-gadgets" {
		t.Errorf("%v", list.APIResources)
	}
}

func TestTheLegacyAPIHasAllServersAddresses(t *testing.T) {
	s := Compile([]discovery.Observation{server("b", core()), server("a", core()), server("a", core())}, true)
	got := decode[metav1.APIVersions](t, get(t, s, "/api"))
	want := metav1.APIVersions{
		TypeMeta: metav1.TypeMeta{Kind: "APIVersions"},
		Versions: []string{"v1"},
		ServerAddressByClientCIDRs: []metav1.ServerAddressByClientCIDR{
			{ClientCIDR: "0.0.0.0/0", ServerAddress: "a:6443"}, {ClientCIDR: "0.0.0.0/0", ServerAddress: "b:6443"}},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestServersOwnETagsAreKnownByPath(t *testing.T) {
	s := Compile([]discovery.Observation{server("a", core())}, true)
	for _, c := range []struct{ server, path, want string }{
		{"a", "/api", `"a-api"`}, {"a", "/api/", `"a-api"`}, {"a", "/apis", `"a-apis"`},
		{"a", "/apis/", ""}, {"a", "/apis/apps", ""}, {"b", "/apis", ""}, {"a", "/openapi/v3/api/v1", ""},
	} {
		if got := s.ETag(c.server, c.path); got != c.want {
			t.Errorf("%s of %s: %s, want %s", c.path, c.server, got, c.want)
		}
	}
}
