package routing

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"xds-server/test/e2e/suite"
	"xds-server/test/lab"
	"xds-server/test/plane"
)

const disruptionBudgets = "/apis/policy/v1/namespaces/default/poddisruptionbudgets"

// A thing is an object that a load reads and writes at a front.
type thing struct {
	node       *plane.Node
	what       string // local or peer-only, in messages
	collection string
	kind       string // with its apiVersion, as the beginning of the object's JSON
	spec       string
}

func (o thing) json(name string) string {
	return fmt.Sprintf(`{%s,"metadata":{"name":%q}%s}`, o.kind, name, o.spec)
}

// Things of both kinds for a node: what every server serves, what only 1.37 does, and what it was told not to serve.
func localThing(n *plane.Node) thing {
	return thing{n, "local", "/api/v1/namespaces/default/configmaps", `"apiVersion":"v1","kind":"ConfigMap"`, ""}
}

func newerThing(n *plane.Node) thing {
	return thing{n, "peer-only", migrations, `"apiVersion":"storagemigration.k8s.io/v1","kind":"StorageVersionMigration"`,
		`,"spec":{"resource":{"group":"","resource":"secrets"}}`}
}

func olderThing(n *plane.Node) thing {
	return thing{n, "peer-only", disruptionBudgets, `"apiVersion":"policy/v1","kind":"PodDisruptionBudget"`,
		`,"spec":{"minAvailable":1,"selector":{"matchLabels":{"a":"b"}}}`}
}

// steady is a load of reads and writes that goes on until it is stopped: over HTTP/1.1 with a token and HTTP/2 with a
// certificate, on old connections and new ones. Every request has to succeed.
type steady struct {
	s        *suite.S
	cancel   func()
	workers  sync.WaitGroup
	requests atomic.Int64

	mu       sync.Mutex
	failures []string
	failed   int
}

// freshAfter is how many requests a worker sends over one connection.
const freshAfter = 25

func startSteady(s *suite.S, w world, things ...thing) *steady {
	s.Helper()
	ctx, cancel := context.WithCancel(s.Ctx)
	l := &steady{s: s, cancel: cancel}
	s.Cleanup(cancel)
	certificate, err := w.NewClientCertificate("dora", "lab:admins")
	if err != nil {
		s.Fatal(err)
	}
	for _, o := range things {
		for protocol, credential := range map[lab.Protocol]lab.Credential{lab.HTTP1: w.Token("alice"), lab.HTTP2: certificate} {
			name := fmt.Sprintf("steady-%s-%d", o.node.Name, protocol)
			url := o.node.FrontURL() + o.collection
			client := s.Client(w.Lab, credential, protocol)
			if a := s.Call(client, "POST", url, o.json(name), nil); a.Status != 201 && a.Status != 409 {
				s.Fatalf("creating %s at %s answered %d: %s", name, url, a.Status, a.Body)
			}
			s.Cleanup(func() {
				for _, n := range w.Plane.Nodes { // at a server that knows it, which the node's own need not
					_, _ = lab.Call(context.Background(), w.Client(credential, protocol), "DELETE", n.DirectURL()+o.collection+"/"+name, "", nil)
				}
			})
			l.work(ctx, client, o, "GET", url+"/"+name)
			l.work(ctx, s.Client(w.Lab, credential, protocol), o, "PATCH", url+"/"+name)
		}
	}
	return l
}

// work sends the same request again and again.
func (l *steady) work(ctx context.Context, client *http.Client, o thing, method, url string) {
	l.workers.Go(func() {
		tick := time.NewTicker(100 * time.Millisecond)
		defer tick.Stop()
		for i := 0; ; i++ {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
			if i%freshAfter == freshAfter-1 {
				client.CloseIdleConnections()
			}
			var body string
			header := http.Header{}
			if method == "PATCH" {
				header.Set("Content-Type", "application/merge-patch+json")
				body = fmt.Sprintf(`{"metadata":{"annotations":{"round":"%d"}}}`, i)
			}
			l.requests.Add(1)
			a, err := lab.Call(ctx, client, method, url, body, header)
			switch {
			case ctx.Err() != nil:
				return
			case err != nil:
				l.fail("%s %s (%s) after %d: %v", method, url, o.what, i, err)
			case a.Status != 200:
				l.fail("%s %s (%s) after %d: %d %s", method, url, o.what, i, a.Status, a.Body)
			}
		}
	})
}

func (l *steady) fail(format string, args ...any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.failed++; len(l.failures) < 5 {
		l.failures = append(l.failures, time.Now().Format("15:04:05.000 ")+fmt.Sprintf(format, args...))
	}
}

// stop ends the load and says how many of its requests failed.
func (l *steady) stop() int {
	l.cancel()
	l.workers.Wait()
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.failed
}

// stopClean ends the load and fails the scenario if any request failed.
func (l *steady) stopClean() {
	l.s.Helper()
	if n := l.stop(); n > 0 {
		l.s.Errorf("%d of %d requests failed, first:\n%s", n, l.requests.Load(), strings.Join(l.failures, "\n"))
	}
}
