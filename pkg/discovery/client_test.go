package discovery

import (
	"context"
	"crypto/x509"
	"errors"
	"io"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"go.uber.org/zap"

	"xds-server/pkg/config/certtest"
)

func TestAServersOwnViewIsRead(t *testing.T) {
	s := newAPIServer(t)
	r := s.client(t).read(t.Context())
	if r.result != resultRead || r.ready != isReady || r.err != nil {
		t.Fatalf("got %+v", r)
	}
	if got, want := words(r.view.Groups), "/v1/pods apps/v1/deployments apps/v1/deployments/status"; got != want {
		t.Errorf("view: %s, want %s", got, want)
	}
	requests := s.seen()
	// Ready before and after, since a restart in between would make an incomplete document look complete.
	if got := paths(requests); got != "/readyz /api /apis /readyz" {
		t.Errorf("requests: %s", got)
	}
	connections := map[string]bool{}
	for _, q := range requests {
		connections[q.RemoteAddr] = true
		if q.TLS.ServerName != "xds-server.kubernetes.default.svc" || q.ProtoMajor != 2 {
			t.Errorf("%s: SNI %q over HTTP/%d", q.URL.Path, q.TLS.ServerName, q.ProtoMajor)
		}
		if len(q.TLS.PeerCertificates) == 0 || q.TLS.PeerCertificates[0].Subject.CommonName != "xds-server" {
			t.Errorf("%s: xds-server did not say who it is", q.URL.Path)
		}
	}
	if a := requests[2].Header.Get("Accept"); !strings.HasPrefix(a, typeV2+";profile=nopeer,") {
		t.Errorf("what peers serve was not left out: Accept: %s", a)
	}
	if len(connections) != 1 {
		t.Errorf("%d connections instead of one", len(connections))
	}
}

func TestAServerThatOnlySpeaksHTTP1IsReadToo(t *testing.T) {
	s := newAPIServer(t)
	s.TLS.NextProtos = []string{"http/1.1"}
	if r := s.client(t).read(t.Context()); r.result != resultRead {
		t.Errorf("got %+v", r)
	}
}

func TestAnUnchangedViewIsConfirmedWithoutBeingSentAgain(t *testing.T) {
	s := newAPIServer(t)
	c := s.client(t)
	first := c.read(t.Context())
	s.seen()
	second := c.read(t.Context())
	if second.result != resultConfirmed || second.view != first.view {
		t.Errorf("got %+v", second)
	}
	if got := paths(s.seen()); got != "/readyz /api /apis" {
		t.Errorf("requests: %s", got)
	}
	// Also if a server gives no ETag, or gives another one for the same content.
	s.on("/apis", typed(typeV2, render(groups("apps/v1/deployments", "apps/v1/deployments/status"))))
	if r := c.read(t.Context()); r.result != resultConfirmed || r.view != first.view {
		t.Errorf("without an ETag: got %+v", r)
	}
}

func TestAChangeOfOneDocumentIsANewView(t *testing.T) {
	s := newAPIServer(t)
	c := s.client(t)
	first := c.read(t.Context())
	s.serveView("/v1/pods", "apps/v1/deployments", "batch/v1/jobs")
	second := c.read(t.Context())
	if second.result != resultRead || words(second.view.Groups) != "/v1/pods apps/v1/deployments batch/v1/jobs" {
		t.Errorf("got %+v", second)
	}
	if words(first.view.Groups) != "/v1/pods apps/v1/deployments apps/v1/deployments/status" {
		t.Error("the first view, which others hold, was changed")
	}
}

func TestAServerBefore130IsReadInItsOwnVersion(t *testing.T) {
	s := newAPIServer(t)
	old := strings.Replace(string(render(groups("apps/v1/deployments"))), "apidiscovery.k8s.io/v2", "apidiscovery.k8s.io/v2beta1", 1)
	s.on("/apis", typed(typeV2beta1, []byte(old)))
	if r := s.client(t).read(t.Context()); r.result != resultRead || words(r.view.Groups) != "/v1/pods apps/v1/deployments" {
		t.Errorf("got %+v", r)
	}
}

func TestAServerThatIsTooOldIsNamedAsThat(t *testing.T) {
	for name, h := range map[string]http.HandlerFunc{
		"it refuses the format": text(http.StatusNotAcceptable, "only the following media types are accepted"),
		"it answers in another": typed("application/json", []byte(`{"kind":"APIVersions","versions":["v1"]}`)),
	} {
		t.Run(name, func(t *testing.T) {
			s := newAPIServer(t)
			s.on("/api", h)
			r := s.client(t).read(t.Context())
			if r.result != resultUnsupported || r.ready != isReady || !strings.Contains(r.err.Error(), "1.27") {
				t.Errorf("got %+v", r)
			}
		})
	}
}

func TestAServerThatIsNotReadyIsNotAskedWhatItServes(t *testing.T) {
	s := newAPIServer(t)
	s.on("/readyz", text(500, "[-]poststarthook/crd-informer-synced failed"))
	r := s.client(t).read(t.Context())
	if r.result != resultUnready || r.ready != isUnready || r.view != nil || !strings.Contains(r.err.Error(), "crd-informer-synced") {
		t.Errorf("got %+v", r)
	}
	if got := paths(s.seen()); got != "/readyz" {
		t.Errorf("requests: %s", got)
	}
}

func TestADocumentOfAServerThatRestartedMeanwhileIsNotTaken(t *testing.T) {
	s := newAPIServer(t)
	c := s.client(t)
	before := c.read(t.Context())
	s.serveView("/v1/pods")
	full := withETag(typeV2, render(nil))
	s.on("/apis", func(w http.ResponseWriter, r *http.Request) {
		s.on("/readyz", text(500, "starting"))
		full(w, r)
	})
	if r := c.read(t.Context()); r.result != resultUnready || r.view != nil {
		t.Errorf("got %+v", r)
	}
	s.on("/readyz", text(200, "ok"))
	s.serveView("/v1/pods", "apps/v1/deployments", "apps/v1/deployments/status")
	if r := c.read(t.Context()); r.result != resultConfirmed || r.view != before.view {
		t.Errorf("once it is ready again: got %+v", r)
	}
}

func TestAViewIsCompleteOrNotTaken(t *testing.T) {
	s := newAPIServer(t)
	c := s.client(t)
	c.read(t.Context())
	s.serveView("/v1/pods", "/v1/secrets", "batch/v1/jobs")
	s.on("/apis", text(503, "etcd"))
	if r := c.read(t.Context()); r.result != resultInvalid || r.ready != isReady || r.view != nil {
		t.Errorf("got %+v", r)
	}
	s.serveView("/v1/pods", "/v1/secrets", "batch/v1/jobs")
	if r := c.read(t.Context()); r.result != resultRead || words(r.view.Groups) != "/v1/pods /v1/secrets batch/v1/jobs" {
		t.Errorf("once it is whole: got %+v", r)
	}
}

func TestAServerThatRefusesUsIsNotTakenForADeadOne(t *testing.T) {
	for _, path := range []string{"/readyz", "/api", "/apis"} {
		for _, status := range []int{401, 403} {
			s := newAPIServer(t)
			s.on(path, text(status, "no"))
			r := s.client(t).read(t.Context())
			if r.result != resultRefused || r.ready == isUnready || r.ready == noAnswer || !strings.Contains(r.err.Error(), "tlsCertFile") {
				t.Errorf("%s %d: got %+v", path, status, r)
			}
		}
	}
}

func TestOnlyAKubeAPIServerOfThisClusterIsBelieved(t *testing.T) {
	for name, changes := range map[string][]certtest.Change{
		"another name":                       {certtest.DNS("kubernetes.example.com")},
		"the name that is only sent":         {certtest.DNS(sni)},
		"no name":                            {certtest.Usages(x509.ExtKeyUsageServerAuth)},
		"expired":                            {certtest.DNS(serverName), certtest.Expired},
		"a client certificate with the name": {certtest.DNS(serverName), certtest.Usages(x509.ExtKeyUsageClientAuth)},
	} {
		t.Run(name, func(t *testing.T) {
			s := newAPIServer(t, changes...)
			refusesServer(t, s)
		})
	}
	t.Run("another CA", func(t *testing.T) {
		s := newAPIServer(t)
		certtest.Write(t, s.dir, "ca.crt", certtest.NewCA(t, "kubernetes").PEM())
		touch(t, s.file("ca.crt"))
		refusesServer(t, s)
	})
}

func refusesServer(t *testing.T, s *apiserver) {
	t.Helper()
	s.Config.ErrorLog = nil
	r := s.client(t).read(t.Context())
	if r.result != resultUnreachable || r.view != nil || r.err == nil || !strings.Contains(r.err.Error(), "certificate") {
		t.Errorf("got %+v", r)
	}
	if got := s.seen(); len(got) != 0 {
		t.Errorf("it was asked all the same: %s", paths(got))
	}
}

func TestARedirectIsNotFollowed(t *testing.T) {
	s := newAPIServer(t)
	s.on("/apis", http.RedirectHandler("https://"+s.Listener.Addr().String()+"/elsewhere", http.StatusFound).ServeHTTP)
	if r := s.client(t).read(t.Context()); r.result != resultInvalid {
		t.Errorf("got %+v", r)
	}
	if got := paths(s.seen()); strings.Contains(got, "elsewhere") {
		t.Errorf("requests: %s", got)
	}
}

// However a server misbehaves, what it costs is its own view, within the time and memory that one read may take.
func TestABrokenDocumentGivesNoView(t *testing.T) {
	forever := func(prefix, again string) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", typeV2)
			_, err := io.WriteString(w, prefix)
			chunk := strings.Repeat(again, 10_000)
			for err == nil {
				_, err = io.WriteString(w, chunk)
			}
		}
	}
	const items = `{"kind":"APIGroupDiscoveryList","apiVersion":"apidiscovery.k8s.io/v2","items":[`
	resources := items + `{"metadata":{"name":"a"},"versions":[{"version":"v1","resources":[`
	for name, h := range map[string]http.HandlerFunc{
		"endless blanks":            forever("", " "),
		"endless groups":            forever(items+"{}", ",{}"),
		"endless nothings":          forever(items+"null", ",null"),
		"endless versions":          forever(items+`{"versions":[null`, ",null"),
		"endless resources":         forever(resources+"null", ",null"),
		"endless verbs":             forever(resources+`{"verbs":[""`, `,""`),
		"endless fields":            forever(`{"":0`, `,"":0`),
		"an endless name":           forever(items+`{"metadata":{"name":"`, "x"),
		"deep nesting":              typed(typeV2, []byte(items+strings.Repeat("[", 1_000_000))),
		"deep nesting in a skipped": typed(typeV2, []byte(`{"x":`+strings.Repeat(`{"a":`, 1_000_000))),
		"words for lists":           typed(typeV2, []byte(`{"kind":"APIGroupDiscoveryList","apiVersion":"apidiscovery.k8s.io/v2","items":"none"}`)),
		"numbers for names":         typed(typeV2, []byte(items+`{"metadata":{"name":1}}]}`)),
		"lists for resources":       typed(typeV2, []byte(resources+`[]]}]}]}`)),
		"another kind":              typed(typeV2, []byte(`{"kind":"Status","apiVersion":"v1"}`)),
		"no items":                  typed(typeV2, []byte(`{"kind":"APIGroupDiscoveryList","apiVersion":"apidiscovery.k8s.io/v2"}`)),
		"items twice":               typed(typeV2, []byte(items+`],"items":[]}`)),
		"two documents":             typed(typeV2, []byte(items+`]}{}`)),
		"half a document":           typed(typeV2, []byte(items)),
		"nothing":                   typed(typeV2, nil),
		"HTML":                      typed("text/html", []byte("<html>")),
		"304 that nobody asked for": text(http.StatusNotModified, ""),
	} {
		t.Run(name, func(t *testing.T) {
			s := newAPIServer(t)
			s.on("/apis", h)
			c := s.client(t)
			c.limit = 8 << 20 // enough for every other limit to be met first, where there is one
			r := c.read(t.Context())
			if r.view != nil || r.err == nil || r.ready != isReady || (r.result != resultInvalid && r.result != resultUnreachable) {
				t.Errorf("got %+v", r)
			}
			if errors.Is(r.err, context.DeadlineExceeded) {
				t.Errorf("it took all the time there was: %v", r.err)
			}
		})
	}
}

func TestTheCoreGroupIsNeverMissing(t *testing.T) {
	s := newAPIServer(t)
	s.on("/api", withETag(typeV2, render(nil)))
	if r := s.client(t).read(t.Context()); r.result != resultInvalid || r.view != nil {
		t.Errorf("got %+v", r)
	}
}

func TestADocumentThatDripsEndsWithTheTimeout(t *testing.T) {
	s := newAPIServer(t)
	s.on("/apis", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", typeV2)
		for r.Context().Err() == nil {
			_, _ = w.Write([]byte(" "))
			_ = http.NewResponseController(w).Flush()
			select {
			case <-r.Context().Done():
			case <-time.After(time.Millisecond):
			}
		}
	})
	c := s.client(t)
	c.timeout = 200 * time.Millisecond
	began := time.Now()
	r := c.read(t.Context())
	if r.result != resultUnreachable || r.ready != isReady || !errors.Is(r.err, context.DeadlineExceeded) {
		t.Errorf("got %+v", r)
	}
	if took := time.Since(began); took > 5*time.Second {
		t.Errorf("it took %s", took)
	}
}

func TestAServerThatNeverAnswersIsUnreachable(t *testing.T) {
	s := newAPIServer(t)
	s.on("/readyz", func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() })
	c := s.client(t)
	c.timeout = 200 * time.Millisecond
	if r := c.read(t.Context()); r.result != resultUnreachable || r.ready != noAnswer {
		t.Errorf("got %+v", r)
	}
	s.on("/readyz", text(200, "ok"))
	c.timeout = 10 * time.Second
	if r := c.read(t.Context()); r.result != resultRead {
		t.Errorf("once it answers: got %+v", r)
	}
}

func TestRenewedCertificatesAreUsedAtTheNextRead(t *testing.T) {
	s := newAPIServer(t)
	c := s.client(t)
	c.read(t.Context())
	s.seen()
	s.writeFiles(t, s.ca, "xds-server-renewed")
	c.read(t.Context())
	for _, q := range s.seen() {
		if cn := q.TLS.PeerCertificates[0].Subject.CommonName; cn != "xds-server-renewed" {
			t.Errorf("%s was asked for as %s", q.URL.Path, cn)
		}
	}
}

func TestHalfWrittenCertificatesDoNotReplaceGoodOnes(t *testing.T) {
	for name, spoil := range map[string]func(*apiserver){
		"key of another certificate": func(s *apiserver) { _, key := s.ca.Issue("x"); certtest.Write(t, s.dir, "tls.key", key) },
		"empty CA":                   func(s *apiserver) { certtest.Write(t, s.dir, "ca.crt", nil) },
		"certificate removed":        func(s *apiserver) { _ = os.Remove(s.file("tls.crt")) },
	} {
		t.Run(name, func(t *testing.T) {
			s := newAPIServer(t)
			c := s.client(t)
			c.read(t.Context())
			spoil(s)
			if r := c.read(t.Context()); r.result != resultConfirmed {
				t.Errorf("got %+v", r)
			}
			s.writeFiles(t, s.ca, "whole-again")
			s.seen()
			c.read(t.Context())
			if cn := s.seen()[0].TLS.PeerCertificates[0].Subject.CommonName; cn != "whole-again" {
				t.Errorf("the files are good again, but %s is used", cn)
			}
		})
	}
}

func TestMissingFilesAreSaidAtTheStart(t *testing.T) {
	s := newAPIServer(t)
	for _, name := range []string{"ca.crt", "tls.crt", "tls.key"} {
		files := map[string]string{"ca.crt": s.file("ca.crt"), "tls.crt": s.file("tls.crt"), "tls.key": s.file("tls.key")}
		files[name] = s.file("missing")
		_, err := NewCredentials(files["ca.crt"], files["tls.crt"], files["tls.key"], zap.NewNop())
		if err == nil || !strings.Contains(err.Error(), s.file("missing")) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
