package documents

import (
	"crypto/sha512"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"

	"xds-server/pkg/discovery"
)

func TestWhoHasTheDocumentIsToldSo(t *testing.T) {
	s := Compile([]discovery.Observation{{View: large(), Documents: &discovery.Documents{}}}, true)
	for _, c := range []struct {
		path, accept string
		cacheControl string
	}{
		{"/apis", asV2, "public"}, {"/apis", asProto, "public"}, {"/apis/large.test/v1", "application/yaml", cachePrivate},
		{"/api", "", cachePrivate},
	} {
		first := get(t, s, c.path, accept(c.accept))
		tag := first.Header.Get("ETag")
		if want := fmt.Sprintf("%q", fmt.Sprintf("%X", sha512.Sum512(body(t, first)))); tag != want {
			t.Errorf("%s: the ETag is %s, want %s", c.path, tag, want)
		}
		zipped := strings.TrimSuffix(tag, `"`) + `-gzip"`
		for _, have := range []string{
			tag, "W/" + tag, zipped, "*", " * ", `"other",` + tag, `W/"other" , ` + tag, "," + tag + ",", `"a,b", ` + zipped,
		} {
			res := get(t, s, c.path, accept(c.accept), header{"If-None-Match", have})
			if res.StatusCode != http.StatusNotModified || res.Header.Get("ETag") != tag || len(body(t, res)) > 0 ||
				res.Header.Get("Cache-Control") != c.cacheControl || res.Header.Get("Vary") != first.Header.Get("Vary") ||
				res.Header.Get("Content-Type") != "" || res.Header.Get(Header) != "merged" {
				t.Errorf("%s, If-None-Match %.80s: %d %v", c.path, have, res.StatusCode, res.Header)
			}
		}
		for _, have := range []string{
			"", `""`, `"other"`, strings.Trim(tag, `"`), tag[:20], tag[:20] + `"`, strings.ToLower(tag), "w/" + tag, "**",
			"*, " + tag, `"open, ` + tag, "nonsense " + tag, `"other" ` + tag, `"other";` + tag, "W/ " + tag,
		} {
			if res := get(t, s, c.path, accept(c.accept), header{"If-None-Match", have}); res.StatusCode != http.StatusOK {
				t.Errorf("%s, If-None-Match %.80s: %d", c.path, have, res.StatusCode)
			}
		}
		two := get(t, s, c.path, accept(c.accept), header{"If-None-Match", `"other"`}, header{"If-None-Match", tag})
		if two.StatusCode != http.StatusNotModified {
			t.Errorf("%s, two headers: %d", c.path, two.StatusCode)
		}
		if other := get(t, s, c.path, accept("application/json"), header{"If-None-Match", tag}); c.accept != "" && other.StatusCode != http.StatusOK {
			t.Errorf("%s: the ETag is that of another encoding, too", c.path)
		}
	}
}

func TestLargeDocumentsComeCompressedToWhoeverAsks(t *testing.T) {
	s := Compile([]discovery.Observation{{View: large()}}, true)
	zip := header{"Accept-Encoding", "gzip"}
	plain, zipped := get(t, s, "/apis", accept(asV2)), get(t, s, "/apis", accept(asV2), zip)
	if got := zipped.Header.Values("Vary"); strings.Join(got, ", ") != "Accept, Accept-Encoding" {
		t.Errorf("Vary: %v", got)
	}
	want := strings.TrimSuffix(plain.Header.Get("ETag"), `"`) + `-gzip"`
	if got := zipped.Header.Get("ETag"); got != want {
		t.Errorf("the ETag is %s, want %s", got, want)
	}
	if string(body(t, plain)) != string(body(t, zipped)) {
		t.Error("what was compressed is something else")
	}
	again := get(t, s, "/apis", accept(asV2), zip, header{"If-None-Match", plain.Header.Get("ETag")})
	if again.StatusCode != http.StatusNotModified || again.Header.Get("ETag") != want || again.Header.Get("Content-Encoding") != "" {
		t.Errorf("%d %v", again.StatusCode, again.Header)
	}
}

func TestHeadHasTheHeadersOfGet(t *testing.T) {
	s := Compile([]discovery.Observation{lists(server("a", core(), apps("Deployment")), "gone.test")}, true)
	for path, accepts := range map[string]string{
		"/apis": asV2, "/api": "", "/apis/apps/v1": "application/yaml", "/apis/apps": "text/plain", "/apis/gone.test": "",
	} {
		h, _ := s.Find(path)
		want, got := get(t, s, path, accept(accepts)), serve(h, newRequest(http.MethodHead, path, accept(accepts)))
		if b := body(t, got); len(b) > 0 {
			t.Errorf("%s: a body: %.80s", path, b)
		}
		if fmt.Sprint(want.Header) != fmt.Sprint(got.Header) || want.StatusCode != got.StatusCode {
			t.Errorf("%s: %d %v, want %d %v", path, got.StatusCode, got.Header, want.StatusCode, want.Header)
		}
	}
}

// A document is rendered once, however many ask at the same time.
func TestManyCanAskAtOnce(t *testing.T) {
	s := Compile([]discovery.Observation{{View: large()}}, true)
	var wait sync.WaitGroup
	for range 8 {
		for _, a := range []string{asV2, asV2Beta1, asProto, asYAML, "application/json", "*/*"} {
			wait.Go(func() {
				if got := get(t, s, "/apis", accept(a), header{"Accept-Encoding", "gzip"}).StatusCode; got != http.StatusOK {
					t.Errorf("%s: %d", a, got)
				}
			})
		}
	}
	wait.Wait()
	h, _ := s.Find("/apis")
	one, two := serve(h, newRequest("GET", "/apis", accept(asV2))), serve(h, newRequest("GET", "/apis", accept(asV2)))
	if one.Header.Get("ETag") != two.Header.Get("ETag") {
		t.Error("two ETags")
	}
	d := s.pages["/apis"].handler.(*document)
	if got := len(d.contents); got != 5 {
		t.Errorf("%d representations are kept, want 5: JSON and */* are one", got)
	}
}
