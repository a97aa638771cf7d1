package discovery

import (
	"encoding/json"
	"fmt"
	"net/http"
	"testing"
	"time"

	"xds-server/test/e2e/suite"
	"xds-server/test/lab"
)

// testOutage is acceptance 5: the only server of what controllers have to know of is down.
func testOutage(t *testing.T, p pair) {
	suite.Scenario(t, "A5", "a controller manager behind the old front while the only new server is down: nothing is lost or orphaned, all else is handled, everything finishes when it is back (scenario 21)", func(s *suite.S) {
		outage(s, p)
	})
}

const (
	namespaces = "/api/v1/namespaces"
	configMaps = "/api/v1/namespaces/%s/configmaps"
	budgets    = "/apis/policy/v1/namespaces/%s/poddisruptionbudgets"
)

// ward is what the scenario keeps an eye on.
type ward struct {
	*suite.S
	pair
	client *http.Client
}

func outage(s *suite.S, p pair) {
	w := ward{s, p, s.Client(p.Lab, p.Token("alice"), lab.HTTP2)}
	manager, err := p.old.ControllerManager(lab.Kube136, p.old.FrontURL(), "--leader-elect=false")
	if err != nil {
		s.Fatal(err)
	}
	start := func() {
		s.Helper()
		if err := manager.Start(); err != nil {
			s.Fatal(err)
		}
		if err := manager.WaitReady(s.Ctx); err != nil {
			s.Fatal(err)
		}
	}
	start()
	defer func() {
		if s.Failed() {
			s.Logf("end of the controller manager's log:\n%s", manager.LogTail(30))
		}
		manager.Kill()
		if !p.updated.Server.Running() { // for the scenarios after this
			if err := p.updated.Server.Start(); err != nil {
				s.Error(err)
			}
			if err := p.updated.Server.WaitReady(s.Ctx); err != nil {
				s.Error(err)
			}
		}
	}()

	for _, name := range []string{"held", "other"} {
		w.create(namespaces, `{"metadata":{"name":"`+name+`"}}`)
		w.create(fmt.Sprintf(configMaps, name), `{"metadata":{"name":"content"}}`)
	}
	budget := `{"apiVersion":"policy/v1","kind":"PodDisruptionBudget","metadata":{"name":%q},"spec":{"minAvailable":1,"selector":{"matchLabels":{"a":"b"}}}}`
	w.create(fmt.Sprintf(budgets, "held"), fmt.Sprintf(budget, "held"))
	owner := w.create(fmt.Sprintf(budgets, "default"), fmt.Sprintf(budget, "owner"))
	w.create(fmt.Sprintf(configMaps, "default"), owned("owned", "policy/v1", "PodDisruptionBudget", "owner", owner))
	w.garbage("before") // it collects at all
	before := settled(s, p.world, p.nodes, "before the outage", union(s, p.world, p.nodes...))

	p.updated.Server.Kill()
	eventually(s, 10*time.Second, "what only the new server serves is unavailable", func() error {
		return w.status("GET", p.old.FrontURL()+fmt.Sprintf(budgets, "default"), "", 503)
	})
	docs := settled(s, p.world, p.nodes, "the new server down", func(groupList) error { return nil })
	if err := before.differences(docs); err != nil {
		s.Errorf("documents during the outage: %v", err)
	}
	for _, name := range []string{"held", "other"} {
		s.Want(w.client, "DELETE", p.old.FrontURL()+namespaces+"/"+name, "", 200, "")
	}
	eventually(s, time.Minute, "the other namespace's objects are deleted", func() error {
		return w.status("GET", p.old.FrontURL()+fmt.Sprintf(configMaps, "other")+"/content", "", 404)
	})
	w.create(fmt.Sprintf(configMaps, "default"), owned("owned-later", "policy/v1", "PodDisruptionBudget", "owner", owner))
	w.garbage("during")
	w.kept()

	// One that starts meanwhile has seen no object of what is unavailable, so it has to ask for each owner.
	manager.Kill()
	start()
	w.garbage("during-restarted")
	w.kept()
	s.Want(w.client, "GET", p.old.FrontURL()+namespaces+"/held", "", 200, `"Terminating"`)

	if err := p.updated.Server.Start(); err != nil {
		s.Fatal(err)
	}
	if err := p.updated.Server.WaitReady(s.Ctx); err != nil {
		s.Fatal(err)
	}
	back := time.Now()
	s.Want(w.client, "GET", p.updated.DirectURL()+fmt.Sprintf(budgets, "default")+"/owner", "", 200, owner)
	for _, name := range []string{"held", "other"} {
		eventually(s, 90*time.Second, "the namespace "+name+" is gone", func() error {
			return w.status("GET", p.old.FrontURL()+namespaces+"/"+name, "", 404)
		})
	}
	fmt.Printf("       both namespaces were gone %.1f s after the server was back\n", time.Since(back).Seconds())
	s.Want(w.client, "GET", p.updated.DirectURL()+fmt.Sprintf(budgets, "held"), "", 200, `"items":[]`)
	w.kept()
	s.Want(w.client, "DELETE", p.old.FrontURL()+fmt.Sprintf(budgets, "default")+"/owner", "", 200, "")
	for _, name := range []string{"owned", "owned-later"} {
		eventually(s, 90*time.Second, name+" goes with its owner", func() error {
			return w.status("GET", p.old.FrontURL()+fmt.Sprintf(configMaps, "default")+"/"+name, "", 404)
		})
	}
}

func owned(name, version, kind, owner, uid string) string {
	return fmt.Sprintf(`{"metadata":{"name":%q,"ownerReferences":[{"apiVersion":%q,"kind":%q,"name":%q,"uid":%q}]}}`, name, version, kind, owner, uid)
}

// create creates an object through the old front and gives its UID.
func (w ward) create(path, body string) string {
	w.Helper()
	a := w.Want(w.client, "POST", w.old.FrontURL()+path, body, 201, "")
	var object struct{ Metadata struct{ UID string } }
	if err := json.Unmarshal(a.Body, &object); err != nil {
		w.Fatal(err)
	}
	return object.Metadata.UID
}

func (w ward) status(method, url, body string, want int) error {
	a, err := lab.Call(w.Ctx, w.client, method, url, body, nil)
	if err == nil && a.Status != want {
		err = fmt.Errorf("%s answered %d, want %d: %.200s", url, a.Status, want, a.Body)
	}
	return err
}

// garbage makes some and waits until it is collected.
func (w ward) garbage(name string) {
	w.Helper()
	path := fmt.Sprintf(configMaps, "default")
	uid := w.create(path, `{"metadata":{"name":"owner-`+name+`"}}`)
	w.create(path, owned("garbage-"+name, "v1", "ConfigMap", "owner-"+name, uid))
	w.Want(w.client, "DELETE", w.old.FrontURL()+path+"/owner-"+name, "", 200, "")
	began := time.Now()
	eventually(w.S, 90*time.Second, "garbage is collected "+name, func() error {
		return w.status("GET", w.old.FrontURL()+path+"/garbage-"+name, "", 404)
	})
	fmt.Printf("       garbage collected %s after %.1f s\n", name, time.Since(began).Seconds())
}

// kept wants what is owned by an object of the unavailable kind to be there.
func (w ward) kept() {
	w.Helper()
	for _, name := range []string{"owned", "owned-later"} {
		w.Want(w.client, "GET", w.old.FrontURL()+fmt.Sprintf(configMaps, "default")+"/"+name, "", 200, name)
	}
}
