package documents

import (
	"encoding/json"
	"io"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	apidiscoveryv2 "k8s.io/api/apidiscovery/v2"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/runtime/serializer/cbor/direct"
	apiserver "k8s.io/apiserver/pkg/endpoints/discovery"
	"k8s.io/apiserver/pkg/endpoints/discovery/aggregated"
	"k8s.io/apiserver/pkg/endpoints/handlers/negotiation"
	"k8s.io/apiserver/pkg/endpoints/handlers/responsewriters"
	"k8s.io/klog/v2"

	"xds-server/pkg/discovery"
)

func init() { // the resource manager logs every version
	klog.LogToStderr(false)
	klog.SetOutput(io.Discard)
}

// native serves a view with kube-apiserver's own handlers, on the paths that it has.
func native(view *discovery.View, options ...serializer.CodecFactoryOptionsMutator) map[string]http.Handler {
	scheme := runtime.NewScheme()
	unversioned := gv("", "v1")
	metav1.AddToGroupVersion(scheme, unversioned)
	scheme.AddUnversionedTypes(unversioned,
		&metav1.Status{}, &metav1.APIVersions{}, &metav1.APIGroupList{}, &metav1.APIGroup{}, &metav1.APIResourceList{})
	codecs := serializer.NewCodecFactory(scheme, options...)
	// What kube-aggregator's handlers do with what they have found.
	object := func(o runtime.Object) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
			responsewriters.WriteObjectNegotiated(codecs, negotiation.DefaultEndpointRestrictions, schema.GroupVersion{}, w, req,
				http.StatusOK, o.DeepCopyObject(), false)
		})
	}
	manager := func(groups []apidiscoveryv2.APIGroupDiscovery) http.Handler {
		m := aggregated.NewResourceManager("apis")
		for i, g := range groups {
			for j, v := range g.Versions {
				m.AddGroupVersion(g.Name, v)
				m.SetGroupVersionPriority(metav1.GroupVersion{Group: g.Name, Version: v.Version}, 20000-i, 20000-j)
			}
		}
		return m
	}

	legacy := object(view.GroupList())
	handlers := map[string]http.Handler{
		"/api": aggregated.WrapAggregatedDiscoveryToHandler(
			apiserver.NewLegacyRootAPIHandler(oneAddress{}, codecs, "/api"), manager(view.Groups[:1]), nil),
		"/apis":  aggregated.WrapAggregatedDiscoveryToHandler(legacy, manager(view.Groups[1:]), nil),
		"/apis/": legacy, // as in kube-aggregator
	}
	for _, g := range view.Groups {
		if g.Name != "" {
			handlers["/apis/"+g.Name] = object(view.Group(g.Name))
		}
		for _, v := range g.Versions {
			path := "/api/" + v.Version
			if g.Name != "" {
				path = "/apis/" + g.Name + "/" + v.Version
			}
			list := view.ResourceList(gv(g.Name, v.Version)).APIResources
			handlers[path] = apiserver.NewAPIVersionHandler(codecs, gv(g.Name, v.Version),
				apiserver.APIResourceListerFunc(func() []metav1.APIResource { return list }))
		}
	}
	for path, h := range handlers {
		handlers[path] = http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
			w.Header().Set("Cache-Control", "no-cache, private") // as filters.WithCacheControl does for all handlers
			h.ServeHTTP(w, req)
		})
	}
	return handlers
}

type oneAddress struct{}

func (oneAddress) ServerAddressByClientCIDRs(net.IP) []metav1.ServerAddressByClientCIDR {
	return []metav1.ServerAddressByClientCIDR{{ClientCIDR: "0.0.0.0/0", ServerAddress: "10.0.0.1:6443"}}
}

// requests are Accept headers, and what else a representation depends on.
var requests = map[string][]header{
	"nothing":                          nil,
	"json":                             {accept("application/json")},
	"anything":                         {accept("*/*")},
	"any application":                  {accept("application/*")},
	"yaml":                             {accept("application/yaml")},
	"protobuf":                         {accept("application/vnd.kubernetes.protobuf")},
	"protobuf or json":                 {accept("application/vnd.kubernetes.protobuf, application/json")},
	"cbor":                             {accept("application/cbor")},
	"cbor or json":                     {accept("application/cbor, application/json")},
	"text":                             {accept("text/plain")},
	"text or anything":                 {accept("text/html, */*;q=0.8")},
	"v2":                               {accept(asV2)},
	"v2 in yaml":                       {accept(asYAML)},
	"v2 in protobuf":                   {accept(asProto)},
	"v2 in cbor":                       {accept("application/cbor;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList")},
	"v2 in anything":                   {accept("*/*;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList")},
	"client-go's":                      {accept(asV2 + "," + asProto + ",application/json")},
	"json before v2":                   {accept("application/json," + asV2)},
	"json rather than v2":              {accept(asV2 + ";q=0.5,application/json")},
	"yaml by weight":                   {accept(asV2 + ";q=0.5," + asYAML + ";q=0.9")},
	"v3":                               {accept("application/json;g=apidiscovery.k8s.io;v=v3;as=APIGroupDiscoveryList")},
	"v3 or json":                       {accept("application/json;g=apidiscovery.k8s.io;v=v3;as=APIGroupDiscoveryList,application/json")},
	"another kind":                     {accept("application/json;g=apidiscovery.k8s.io;v=v2;as=Table")},
	"as alone":                         {accept("application/json;as=APIGroupDiscoveryList")},
	"some profile":                     {accept(asV2 + ";profile=some")},
	"a profile, legacy":                {accept("application/json;profile=nopeer")},
	"a server version":                 {accept("application/json;sv=v1")},
	"a stream":                         {accept("application/json;stream=watch")},
	"another stream":                   {accept("application/json;stream=other")},
	"pretty v2":                        {accept(asV2 + ";pretty=1")},
	"pretty":                           {accept("application/json;pretty=1")},
	"curl":                             {accept("*/*"), {"User-Agent", "curl/8.5.0"}},
	"a browser":                        {accept("text/html,application/xml;q=0.9,*/*;q=0.8"), {"User-Agent", "Mozilla/5.0"}},
	"two headers":                      {accept("text/plain"), accept(asV2)},
	"nonsense":                         {accept(";;;,/,,=")},
	"gzip":                             {accept(asV2), {"Accept-Encoding", "gzip"}},
	"gzip among others":                {accept("application/json"), {"Accept-Encoding", "deflate, gzip, br"}},
	"gzip in protobuf":                 {accept(asProto), {"Accept-Encoding", "gzip"}},
	"gzip in yaml":                     {accept("application/yaml"), {"Accept-Encoding", "gzip"}},
	"gzip with a weight":               {accept(asV2), {"Accept-Encoding", "gzip;q=1.0"}},
	"no gzip":                          {accept(asV2), {"Accept-Encoding", "gzip;q=0"}},
	"any encoding":                     {accept(asV2), {"Accept-Encoding", "*"}},
	"another encoding":                 {accept(asV2), {"Accept-Encoding", "br"}},
	"what a server is not asked about": {accept(asV2), {"If-None-Match", `"some"`}},
}

// Whoever asks gets of us, but for the ETag, what kube-apiserver's own handlers would make of the same content: the same
// status, headers and bytes.
func TestRendersWhatAKubeAPIServerWould(t *testing.T) {
	for name, view := range map[string]*discovery.View{"recorded": discovery.Merge(recorded(t)), "large": large()} {
		t.Run(name, func(t *testing.T) {
			documents := &discovery.Documents{Addresses: oneAddress{}.ServerAddressByClientCIDRs(nil)}
			s := Compile([]discovery.Observation{{View: view, Documents: documents}}, true)
			for path, want := range native(view) {
				for name, headers := range requests {
					for _, target := range []string{path, path + "?pretty=true", path + "?pretty=false"} {
						req := newRequest(http.MethodGet, target, headers...)
						compare(t, name+": "+target, serve(want, req), get(t, s, target, headers...))
					}
				}
			}
		})
	}
}

func compare(t *testing.T, name string, want, got *http.Response) {
	t.Helper()
	if want.StatusCode != got.StatusCode {
		t.Errorf("%s: status %d, want %d", name, got.StatusCode, want.StatusCode)
	}
	compared := []string{"Content-Type", "Content-Encoding", "Vary", "Cache-Control"}
	for _, header := range compared {
		if diff := cmp.Diff(want.Header.Values(header), got.Header.Values(header)); diff != "" {
			t.Errorf("%s: %s (-want +got):\n%s", name, header, diff)
		}
	}
	if want, got := said(t, want), said(t, got); want != got {
		t.Errorf("%s: another body (-want +got):\n%.2000s", name, cmp.Diff(want, got))
	}
	for header := range got.Header {
		if header != Header && header != "Etag" && !slices.Contains(compared, header) {
			t.Errorf("%s: a header that is not expected: %s", name, header)
		}
	}
	if got.StatusCode == http.StatusOK && got.Header.Get("ETag") == "" {
		t.Errorf("%s: no ETag", name)
	}
}

// said is the body; of CBOR, in which a kube-apiserver writes fields in any order, what it says.
func said(t *testing.T, res *http.Response) string {
	t.Helper()
	b := body(t, res)
	if !strings.HasPrefix(res.Header.Get("Content-Type"), "application/cbor") {
		return string(b)
	}
	var content any
	if err := direct.Unmarshal(b, &content); err != nil {
		t.Fatal(err)
	}
	text, err := json.Marshal(content)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// A real server's documents, recorded at one moment, are what becomes of its own view: byte for byte, but for
// storageVersionHash, and for CRDs in an order that such a server changes itself.
func TestRendersWhatWasRecorded(t *testing.T) {
	recording, err := os.ReadFile("../discovery/testdata/merge/legacy-1.37.2.json")
	if err != nil {
		t.Fatal(err)
	}
	var legacy map[string]json.RawMessage
	if err := json.Unmarshal(recording, &legacy); err != nil {
		t.Fatal(err)
	}
	observation := discovery.Observation{View: recorded(t), Documents: &discovery.Documents{}}
	hashes := map[schema.GroupVersion]map[string]string{}
	for _, document := range legacy {
		var list metav1.APIResourceList
		if err := json.Unmarshal(document, &list); err != nil || list.GroupVersion == "" {
			continue
		}
		of, _ := schema.ParseGroupVersion(list.GroupVersion)
		hashes[of] = map[string]string{}
		for _, r := range list.APIResources {
			if r.StorageVersionHash != "" {
				hashes[of][r.Name] = r.StorageVersionHash
			}
		}
	}
	observation.Documents.StorageVersionHashes = hashes
	s := Compile([]discovery.Observation{observation}, true)
	if s.Differ() {
		t.Error("a server differs from itself")
	}
	for path, want := range legacy {
		if path == "/apis/example.test/v1" || path == "/apis/example.test/v1alpha1" {
			continue
		}
		var compact string
		if b, err := json.Marshal(want); err == nil {
			compact = string(b)
		}
		if diff := cmp.Diff(compact+"\n", string(body(t, get(t, s, path)))); diff != "" {
			t.Errorf("%s (-want +got):\n%.2000s", path, diff)
		}
	}
}
