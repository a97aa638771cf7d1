package routing

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"

	"xds-server/test/e2e/suite"
	"xds-server/test/lab"
	"xds-server/test/plane"
)

// prompt is how late a watch event may be on a machine that does much else. Anything that holds bytes back holds them
// until there are more, or for good.
const prompt = 5 * time.Second

func TestEveryVerbOfAPeerOnlyAPI(t *testing.T) {
	suite.Scenario(t, "1", "every verb of every API that only 1.37 has, in JSON and protobuf over HTTP/1.1 and HTTP/2, is the peer's answer; directly it is 404", func(s *suite.S) {
		w := upgrade(s)
		for _, r := range upgradeRows(w.Lab) {
			s.Sub(r.resource, func(s *suite.S) {
				everyVerb(s, w, w.old, w.updated, r)
			})
		}
	})
}

// everyVerb makes every kind of request for a row in every way, at the front of one node for what only another serves.
func everyVerb(s *suite.S, w world, at, by *plane.Node, r row) {
	s.Helper()
	certificate, err := w.NewClientCertificate("carol", "lab:admins")
	if err != nil {
		s.Fatal(err)
	}
	for i, way := range []way{
		{lab.HTTP1, runtime.ContentTypeJSON, w.Token("alice")},
		{lab.HTTP2, runtime.ContentTypeJSON, certificate},
		{lab.HTTP1, runtime.ContentTypeProtobuf, certificate},
		{lab.HTTP2, runtime.ContentTypeProtobuf, w.Token("alice")},
	} {
		v := newVerbs(s, w, at, by, r, way, fmt.Sprintf("verbs-%s-%d", r.resource, i))
		if r.statusOnly {
			v.create(v.local())
		} else {
			v.metadata()
			v.create(v.front)
		}
		if r.status != nil {
			v.subresource()
		}
		v.atThePeer()
		s.Logf("%s %s: the latest of %d watch events came after %s", r.resource, way.contentType, v.events, v.latest.Round(time.Millisecond))
	}
}

// way is how requests are made.
type way struct {
	protocol    lab.Protocol
	contentType string
	credential  lab.Credential
}

// verbs makes every kind of request for one row in one way.
type verbs struct {
	*suite.S
	row
	way
	lab    *lab.Lab
	at, by *plane.Node // whose front is asked, and whose server serves it
	name   string      // of the objects, and the user agent by which audit logs tell these requests from others

	front, direct *rest.RESTClient
	answers       *answers // of the front
	seen          map[string]bool
	asked         time.Time // when the last request was made
	events        int
	latest        time.Duration // the longest time from a request to its watch event
}

func newVerbs(s *suite.S, w world, at, by *plane.Node, r row, way way, name string) *verbs {
	v := &verbs{S: s, row: r, way: way, lab: w.Lab, at: at, by: by, name: name, answers: &answers{}, seen: map[string]bool{}}
	v.front = v.client(at.FrontURL(), v.answers)
	v.direct = v.client(at.DirectURL(), &answers{})
	return v
}

// local is for what the front's own server serves: its answers are not a peer's.
func (v *verbs) local() *rest.RESTClient { return v.client(v.at.FrontURL(), &answers{}) }

func (v *verbs) client(url string, a *answers) *rest.RESTClient {
	v.Helper()
	client := v.Client(v.lab, v.credential, v.protocol)
	a.RoundTripper = client.Transport
	client.Transport = a
	gv := v.GroupVersion
	c, err := rest.RESTClientForConfigAndClient(&rest.Config{
		Host: url, QPS: -1, WarningHandler: rest.NoWarnings{},
		ContentConfig: rest.ContentConfig{
			ContentType: v.contentType, AcceptContentTypes: v.contentType,
			GroupVersion: &gv, NegotiatedSerializer: scheme.Codecs.WithoutConversion(),
		},
	}, client)
	if err != nil {
		v.Fatal(err)
	}
	return c
}

// answers remembers what the header lines of answers were.
type answers struct {
	http.RoundTripper
	proxied      []string
	contentTypes map[string]bool
}

func (a *answers) RoundTrip(r *http.Request) (*http.Response, error) {
	w, err := a.RoundTripper.RoundTrip(r)
	if err == nil {
		a.proxied = w.Header.Values("X-Kubernetes-Peer-Proxied")
		if a.contentTypes == nil {
			a.contentTypes = map[string]bool{}
		}
		contentType, _, _ := strings.Cut(w.Header.Get("Content-Type"), ";")
		a.contentTypes[contentType] = true
	}
	return w, err
}

// new is an object with a label by which a watch and a deletecollection find it.
func (v *verbs) new(name string) object {
	o := v.object()
	gvks, _, err := scheme.Scheme.ObjectKinds(o)
	if err != nil {
		v.Fatal(err)
	}
	o.GetObjectKind().SetGroupVersionKind(gvks[0])
	o.SetName(name)
	o.SetLabels(map[string]string{"test": v.name})
	return o
}

// do makes a request twice: directly at the server, which must not know of such a thing, and through its front.
func (v *verbs) do(what string, request func(*rest.RESTClient) *rest.Request) runtime.Object {
	v.Helper()
	o, err := v.ask(what, v.direct, request)
	if !apierrors.IsNotFound(err) || !strings.Contains(err.Error(), "the server could not find the requested resource") {
		v.Fatalf("%s %s directly at %s: %v %v, want it not to know the resource", what, v.resource, v.at.Name, o, err)
	}
	if o, err = v.ask(what, v.front, request); err != nil {
		v.Fatalf("%s %s through the front of %s: %v", what, v.resource, v.at.Name, err)
	}
	v.marked(what)
	return o
}

func (v *verbs) ask(what string, c *rest.RESTClient, request func(*rest.RESTClient) *rest.Request) (runtime.Object, error) {
	v.asked = time.Now()
	return request(c).SetHeader("User-Agent", v.name+" "+what).MaxRetries(0).Do(v.Ctx).Get()
}

func (v *verbs) marked(what string) {
	v.Helper()
	if !slices.Equal(v.answers.proxied, []string{"true"}) {
		v.Fatalf("the answer to %s %s has x-kubernetes-peer-proxied %q, want one true", what, v.resource, v.answers.proxied)
	}
	v.seen[what] = true
}

func (v *verbs) create(c *rest.RESTClient) {
	v.Helper()
	_, err := v.ask("setup", c, func(c *rest.RESTClient) *rest.Request {
		return c.Post().AbsPath(v.collection()).Body(v.new(v.name + "-status"))
	})
	if err != nil {
		v.Fatalf("creating %s: %v", v.resource, err)
	}
	v.Cleanup(func() {
		// The scenario's own context may have ended.
		if err := c.Delete().AbsPath(v.collection(), v.name+"-status").Do(context.Background()).Error(); err != nil {
			v.Errorf("cleaning up: %v", err)
		}
	})
}

// metadata makes every request for the resource itself, and sees each change in a watch.
func (v *verbs) metadata() {
	v.Helper()
	path, label := v.collection(), "test="+v.name
	next := v.watch(path, label)
	one := func(c *rest.RESTClient) *rest.Request { return c.Get().AbsPath(path, v.name) }

	v.do("create", func(c *rest.RESTClient) *rest.Request { return c.Post().AbsPath(path).Body(v.new(v.name)) })
	next(watch.Added, "")
	o := v.do("get", one).(object)
	if o.GetName() != v.name || o.GetUID() == "" {
		v.Fatalf("get gave %v", o)
	}
	list := v.do("list", func(c *rest.RESTClient) *rest.Request { return c.Get().AbsPath(path).Param("labelSelector", label) })
	if n := meta.LenList(list); n != 1 {
		v.Fatalf("list gave %d objects, want 1", n)
	}
	o.SetLabels(map[string]string{"test": v.name, "by": "update"})
	v.do("update", func(c *rest.RESTClient) *rest.Request { return c.Put().AbsPath(path, v.name).Body(o) })
	next(watch.Modified, "update")
	for _, p := range patches {
		body := fmt.Sprintf(`{"metadata":{"labels":{"by":%q}}}`, p.name)
		if p.kind == types.JSONPatchType {
			body = fmt.Sprintf(`[{"op":"replace","path":"/metadata/labels/by","value":%q}]`, p.name)
		}
		v.do(p.name, func(c *rest.RESTClient) *rest.Request {
			return c.Patch(p.kind).AbsPath(path, v.name).Body([]byte(body))
		})
		next(watch.Modified, p.name)
	}
	applied := v.new(v.name)
	applied.SetLabels(map[string]string{"test": v.name, "by": "apply"})
	v.do("apply", v.apply(applied, path, v.name))
	next(watch.Modified, "apply")
	v.do("apply of a new one", v.apply(v.new(v.name+"-applied"), path, v.name+"-applied"))
	next(watch.Added, "")

	v.do("delete", func(c *rest.RESTClient) *rest.Request {
		return c.Delete().AbsPath(path, v.name).Body(&metav1.DeleteOptions{})
	})
	next(watch.Deleted, "apply")
	v.do("deletecollection", func(c *rest.RESTClient) *rest.Request {
		return c.Delete().AbsPath(path).Param("labelSelector", label).Body(&metav1.DeleteOptions{})
	})
	next(watch.Deleted, "")
	if _, err := v.ask("get of a deleted one", v.front, one); !apierrors.IsNotFound(err) || !strings.Contains(err.Error(), v.name) {
		v.Fatalf("get of a deleted object: %v, want that it is not found", err)
	}
}

// patches are the kinds of patch that built-in resources take, besides apply.
var patches = []struct {
	name string
	kind types.PatchType
}{
	{"json-patch", types.JSONPatchType}, {"merge-patch", types.MergePatchType}, {"strategic-merge-patch", types.StrategicMergePatchType},
}

func (v *verbs) apply(o object, path ...string) func(*rest.RESTClient) *rest.Request {
	body, err := json.Marshal(o)
	if err != nil {
		v.Fatal(err)
	}
	return func(c *rest.RESTClient) *rest.Request {
		return c.Patch(types.ApplyYAMLPatchType).AbsPath(path...).Param("fieldManager", "e2e").Param("force", "true").Body(body)
	}
}

// subresource makes every request for the resource's status.
func (v *verbs) subresource() {
	v.Helper()
	name := v.name + "-status"
	path := []string{v.collection(), name, "status"}
	o := v.do("get status", func(c *rest.RESTClient) *rest.Request { return c.Get().AbsPath(path...) }).(object)
	v.status(o, "update")
	v.do("update status", func(c *rest.RESTClient) *rest.Request { return c.Put().AbsPath(path...).Body(o) })
	for _, p := range patches {
		changed := v.new(name)
		v.status(changed, p.name)
		body := mustJSON(v.S, map[string]any{"status": statusOf(v.S, changed)})
		if p.kind == types.JSONPatchType {
			body = mustJSON(v.S, []map[string]any{{"op": "add", "path": "/status", "value": statusOf(v.S, changed)}})
		}
		v.do(p.name+" of status", func(c *rest.RESTClient) *rest.Request { return c.Patch(p.kind).AbsPath(path...).Body(body) })
	}
	applied := v.new(name)
	v.status(applied, "apply")
	v.do("apply of status", v.apply(applied, path...))
	if v.statusOnly {
		return
	}
	got := v.do("get status again", func(c *rest.RESTClient) *rest.Request { return c.Get().AbsPath(path...) })
	if have, want := mustJSON(v.S, statusOf(v.S, got)), mustJSON(v.S, statusOf(v.S, applied)); string(have) != string(want) {
		v.Fatalf("the status is %s, want what was applied last: %s", have, want)
	}
}

func statusOf(s *suite.S, o runtime.Object) any {
	s.Helper()
	u, err := runtime.DefaultUnstructuredConverter.ToUnstructured(o)
	if err != nil {
		s.Fatal(err)
	}
	return u["status"]
}

func mustJSON(s *suite.S, x any) []byte {
	s.Helper()
	b, err := json.Marshal(x)
	if err != nil {
		s.Fatal(err)
	}
	return b
}

// watch watches the row's objects with a label, at the front, and returns what waits for the next event: of this
// type, about an object that was last changed by this.
func (v *verbs) watch(path, label string) func(watch.EventType, string) {
	v.Helper()
	request := func(c *rest.RESTClient) *rest.Request {
		return c.Get().AbsPath(path).Param("watch", "true").Param("labelSelector", label).SetHeader("User-Agent", v.name+" watch").MaxRetries(0)
	}
	if w, err := request(v.direct).Watch(v.Ctx); !apierrors.IsNotFound(err) {
		v.Fatalf("watching %s directly at %s: %v %v, want not found", v.resource, v.at.Name, w, err)
	}
	w, err := request(v.front).Watch(v.Ctx)
	if err != nil {
		v.Fatalf("watching %s: %v", v.resource, err)
	}
	v.marked("watch")
	v.Cleanup(w.Stop)
	return func(kind watch.EventType, by string) {
		v.Helper()
		select {
		case e, ok := <-w.ResultChan():
			if !ok {
				v.Fatalf("the watch of %s ended", v.resource)
			}
			o, ok := e.Object.(object)
			if !ok || e.Type != kind || o.GetLabels()["by"] != by {
				v.Fatalf("the watch of %s gave %s %v, want %s by %q", v.resource, e.Type, e.Object, kind, by)
			}
			v.events++
			v.latest = max(v.latest, time.Since(v.asked))
		case <-time.After(prompt):
			v.Fatalf("no %s by %q in the watch of %s after %s", kind, by, v.resource, prompt)
		}
	}
}

// atThePeer compares with the two servers' own words: each of these requests is in the serving one's audit log, as
// the caller, and none in the other's but those that were made directly.
func (v *verbs) atThePeer() {
	v.Helper()
	s := v.S
	if !maps.Equal(v.answers.contentTypes, map[string]bool{v.contentType: true}) {
		s.Errorf("the answers were %v, want %s", v.answers.contentTypes, v.contentType)
	}
	user := "alice"
	if v.credential.Cert != nil {
		user = "carol"
	}
	var agents []string
	for what := range v.seen {
		agents = append(agents, v.name+" "+what)
	}
	log := auditByAgent(s, v.by.Node, agents...)
	for _, agent := range agents {
		e := log[agent]
		if e.User.Username != user || !slices.Contains(e.User.Groups, "lab:admins") {
			s.Errorf("%s ran as %v at %s, want %s", agent, e.User, v.by.Name, user)
		}
	}
	events, err := v.at.Audit()
	if err != nil {
		s.Fatal(err)
	}
	for _, e := range events {
		if slices.Contains(agents, e.UserAgent) && e.ResponseStatus.Code != 404 {
			s.Errorf("%s answered %d to %s", v.at.Name, e.ResponseStatus.Code, e.UserAgent)
		}
	}
}
