package documents

import (
	"maps"
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/runtime/serializer/cbor"
	"k8s.io/apimachinery/pkg/runtime/serializer/cbor/direct"
	utilfeature "k8s.io/apiserver/pkg/util/feature"

	"xds-server/pkg/discovery"
)

const asCBOR = "application/cbor;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"

// servesCBOR has kube-apiserver's own handlers offer CBOR for the rest of the test.
func servesCBOR(t *testing.T) {
	t.Helper()
	const gate = "CBORServingAndStorage"
	if err := utilfeature.DefaultMutableFeatureGate.Set(gate + "=true"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := utilfeature.DefaultMutableFeatureGate.Set(gate + "=false"); err != nil {
			t.Error(err)
		}
	})
}

func TestRendersWhatAKubeAPIServerThatOffersCBORWould(t *testing.T) {
	servesCBOR(t)
	more := maps.Clone(requests)
	maps.Copy(more, map[string][]header{
		"v2 in cbor or protobuf":     {accept(asCBOR + "," + asProto + ",application/cbor")},
		"v2 in cbor, rather in json": {accept(asCBOR + ";q=0.5," + asV2)},
		"v2 in cbor in gzip":         {accept(asCBOR), {"Accept-Encoding", "gzip"}},
		"cbor in gzip":               {accept("application/cbor"), {"Accept-Encoding", "gzip"}},
		"cbor, and v2 in json":       {accept("application/cbor," + asV2)},
		"a sequence of cbor":         {accept("application/cbor-seq")},
		"pretty cbor":                {accept("application/cbor;pretty=1")},
	})
	for name, view := range map[string]*discovery.View{"recorded": discovery.Merge(recorded(t)), "large": large()} {
		t.Run(name, func(t *testing.T) {
			documents := &discovery.Documents{Addresses: oneAddress{}.ServerAddressByClientCIDRs(nil)}
			s := Compile([]discovery.Observation{{View: view, Documents: documents}}, true)
			for path, want := range native(view, serializer.WithSerializer(cbor.NewSerializerInfo)) {
				got, _ := s.Find(path)
				for name, headers := range more {
					req := newRequest(http.MethodGet, path, headers...)
					compare(t, name+": "+path, serve(want, req), serve(got, OfferCBOR(req)))
				}
			}
		})
	}
}

func TestADocumentInCBORSaysWhatItSaysInJSON(t *testing.T) {
	s := Compile([]discovery.Observation{server("a", core(), apps("Deployment")), server("b", core(), apps("Rollout"))}, true)
	for path, media := range map[string][2]string{
		"/api": {asCBOR, asV2}, "/apis": {asCBOR, asV2}, "/apis/": {"application/cbor", ""}, "/apis/apps": {"application/cbor", ""},
		"/apis/apps/v1": {"application/cbor", ""}, "/api/v1": {"application/cbor", ""},
	} {
		h, _ := s.Find(path)
		res := serve(h, OfferCBOR(newRequest(http.MethodGet, path, accept(media[0]))))
		if got := res.Header.Get("Content-Type"); got != media[0] || res.StatusCode != http.StatusOK {
			t.Errorf("%s answered %d as %s", path, res.StatusCode, got)
		}
		var got any
		if err := direct.Unmarshal(body(t, res), &got); err != nil {
			t.Errorf("%s: %v", path, err)
		}
		if d := cmp.Diff(decode[any](t, get(t, s, path, accept(media[1]))), got); d != "" {
			t.Errorf("%s says something else in CBOR than in JSON:\n%s", path, d)
		}
	}
}

// By default no kube-apiserver has CBOR, and a client that wants nothing else is told so.
func TestNoDocumentIsInCBORUnlessThatIsOffered(t *testing.T) {
	s := Compile([]discovery.Observation{server("a", core(), apps("Deployment"))}, true)
	for _, accepts := range []string{asCBOR, "application/cbor"} {
		if got := get(t, s, "/apis", accept(accepts)).StatusCode; got != http.StatusNotAcceptable {
			t.Errorf("%s answered %d", accepts, got)
		}
		if got := get(t, s, "/apis", accept(accepts+",application/json")).Header.Get("Content-Type"); !strings.HasPrefix(got, "application/json") {
			t.Errorf("%s or JSON answered %s", accepts, got)
		}
	}
}
