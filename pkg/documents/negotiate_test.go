package documents

import (
	"net/http"
	"strings"
	"testing"

	"xds-server/pkg/discovery"
)

func TestOnlyTheClauseThatIsChosenMakesARequestLocal(t *testing.T) {
	const nopeer = ";profile=nopeer"
	for accept, want := range map[string]bool{
		"":                         false,
		"*/*":                      false,
		asV2:                       false,
		asV2 + nopeer:              true,
		asProto + nopeer:           true,
		asYAML + nopeer:            true,
		asV2Beta1 + nopeer:         true,
		asV2 + ";profile=other":    false,
		asV2 + ";profile=":         false,
		asV2 + ";profile=NoPeer":   false,
		asV2 + nopeer + "," + asV2: true,
		asV2 + "," + asV2 + nopeer: false,
		asV2 + nopeer + ";q=0.1," + asV2 + ";q=0.2":        false,
		asV2 + ";q=0.1," + asProto + nopeer + ";q=0.2":     true,
		"application/json," + asV2 + nopeer:                true,
		"application/json" + nopeer:                        false,
		"text/plain" + nopeer + "," + asV2:                 false,
		strings.Replace(asV2, "v=v2", "v=v3", 1) + nopeer:  false,
		"*/*;g=apidiscovery.k8s.io;v=v2;as=Table" + nopeer: false,
		strings.Replace(asV2, "json", "cbor", 1) + nopeer:  true,
		strings.Replace(asV2, "json", "*", 1) + nopeer:     true,
		";" + nopeer: false,
	} {
		if got := Local(accept); got != want {
			t.Errorf("%q: %t, want %t", accept, got, want)
		}
	}
}

// Clients before Kubernetes 1.30 know v2beta1 only, and some of them panic without a responseKind.
func TestOldClientsGetV2Beta1(t *testing.T) {
	a := server("a", core(), apps("Deployment"))
	a.View.Groups[1].Versions[0].Resources[0].ResponseKind = nil
	s := Compile([]discovery.Observation{a}, true)
	res := get(t, s, "/apis", accept(asV2Beta1+",application/json"))
	if got := res.Header.Get("Content-Type"); got != asV2Beta1 {
		t.Errorf("Content-Type: %s", got)
	}
	b := string(body(t, res))
	if !strings.Contains(b, `"apiVersion":"apidiscovery.k8s.io/v2beta1"`) || !strings.Contains(b, `"responseKind":{`) ||
		strings.Contains(b, `"responseKind":null`) {
		t.Error(b)
	}
	if strings.Replace(b, "/v2beta1", "/v2", 1) != string(body(t, get(t, s, "/apis", accept(asV2)))) {
		t.Error("v2beta1 and v2 differ in more than their name")
	}
}

// Reading whatever clients send neither fails nor answers anything that is no answer to it.
func FuzzHeaders(f *testing.F) {
	for _, headers := range requests {
		for _, h := range headers {
			f.Add(h.value, h.value, h.value)
		}
	}
	f.Add(asV2+";profile=nopeer", `W/"a", "b`, "gzip;q=1, gzip")
	s := Compile([]discovery.Observation{server("a", core(), apps("Deployment"))}, true)
	hash := strings.Trim(get(f, s, "/apis", accept(asV2)).Header.Get("ETag"), `"`)
	f.Fuzz(func(t *testing.T, accepts, have, encodings string) {
		options, ok := asksAggregated(accepts, codecs)
		if Local(accepts) && !strings.Contains(accepts, "nopeer") {
			t.Errorf("%q is local", accepts)
		}
		if ok && !strings.Contains(accepts, options.Convert.Version) {
			t.Errorf("%q: %v", accepts, options.Convert)
		}
		if noneMatch([]string{have}, hash) && strings.Trim(have, " \t") != "*" && !strings.Contains(have, hash) {
			t.Errorf("%q matches", have)
		}
		res := get(t, s, "/apis", accept(accepts), header{"If-None-Match", have}, header{"Accept-Encoding", encodings})
		switch res.StatusCode {
		case http.StatusOK:
			if ok != strings.Contains(res.Header.Get("Content-Type"), "as=APIGroupDiscoveryList") {
				t.Errorf("%q: %s", accepts, res.Header.Get("Content-Type"))
			}
		case http.StatusNotModified, http.StatusNotAcceptable:
		default:
			t.Errorf("%q, %q, %q: %d", accepts, have, encodings, res.StatusCode)
		}
	})
}

// A list of tags that is written as it should be names just those that are in it.
func FuzzNoneMatch(f *testing.F) {
	f.Add("a", "b", true)
	f.Add("", "-gzip", false)
	f.Fuzz(func(t *testing.T, one, two string, weak bool) {
		if strings.Contains(one+two, `"`) {
			return
		}
		list := `"` + one + `" ,W/"` + two + `"`
		if weak {
			list = "W/" + list
		}
		for _, tag := range []string{one, two} {
			if !noneMatch([]string{list}, tag) || !noneMatch([]string{`"x"`, list}, strings.TrimSuffix(tag, "-gzip")) {
				t.Errorf("%q is not in %s", tag, list)
			}
		}
		if third := one + two + "?"; noneMatch([]string{list}, third) {
			t.Errorf("%q is in %s", third, list)
		}
	})
}
