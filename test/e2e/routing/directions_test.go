package routing

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"xds-server/test/e2e/suite"
	"xds-server/test/lab"
	"xds-server/test/plane"
)

// Two servers that differ in both directions: the new one does not serve batch/v1 any more.
func TestBothDirections(t *testing.T) {
	w := alone(t, lab.Config{Nodes: []lab.NodeConfig{
		{Name: "old", Version: lab.Kube136},
		{Name: "new", Version: lab.Kube137, RuntimeConfig: []string{"batch/v1=false"}, ExtraArgs: []string{"--feature-gates=CSIVolumeHealth=true"}},
	}}, plane.Options{})

	suite.Scenario(t, "17", "what the newer server serves no more is answered by the older one, every verb of it", func(s *suite.S) {
		everyVerb(s, w, w.updated, w.old, cronJobs)
	})
	suite.Scenario(t, "18", "a subresource that the old server lacks is the new one's, its resource is still local", func(s *suite.S) {
		subresourceAlone(s, w)
	})
	suite.Scenario(t, "20-crd", "a custom resource that every server serves is always served locally", func(s *suite.S) {
		customResource(s, w)
	})
	var x *extension
	suite.Scenario(t, "20-aggregated", "an aggregated API that every server reaches is always served locally", func(s *suite.S) {
		x = startExtension(t, s, w)
		aggregatedEverywhere(s, w, x)
	})
	suite.Scenario(t, "24", "an aggregated API that the old server can't reach is answered by the new one, until it can again", func(s *suite.S) {
		aggregatedAtOne(s, w, x)
	})
	suite.Scenario(t, "backend", "a backend's answer is not taken for a peer listener's word, and may have as many headers as an apiserver's", func(s *suite.S) {
		backendAnswers(s, w, x)
	})
	suite.Scenario(t, "23-requests", "requests reach the server with the headers that they were sent with, and none of Envoy's; if those are let through it is seen", func(s *suite.S) {
		requestHeaders(s, w, x)
	})
}

var cronJobs = row{
	GroupVersion: batchv1.SchemeGroupVersion, resource: "cronjobs", namespaced: true,
	object: func() object {
		return &batchv1.CronJob{
			ObjectMeta: metav1.ObjectMeta{Namespace: corev1.NamespaceDefault},
			Spec: batchv1.CronJobSpec{Schedule: "0 0 1 1 *", JobTemplate: batchv1.JobTemplateSpec{Spec: batchv1.JobSpec{
				Template: corev1.PodTemplateSpec{Spec: corev1.PodSpec{
					RestartPolicy: corev1.RestartPolicyNever, Containers: []corev1.Container{{Name: "none", Image: "none"}},
				}},
			}}},
		}
	},
	status: func(o object, _ string) { o.(*batchv1.CronJob).Status.LastScheduleTime = &since },
}

const csiNodes = "/apis/storage.k8s.io/v1/csinodes"

func subresourceAlone(s *suite.S, w world) {
	s.Helper()
	for i, protocol := range []lab.Protocol{lab.HTTP1, lab.HTTP2} {
		client := s.Client(w.Lab, w.Token("alice"), protocol)
		front, name := w.old.FrontURL()+csiNodes, "patched-"+strconv.Itoa(i)
		object := `{"apiVersion":"storage.k8s.io/v1","kind":"CSINode","metadata":{"name":"` + name + `"},%s}`
		local(s, s.Want(client, "POST", front, fmt.Sprintf(object, `"spec":{"drivers":[]}`), 201, name))
		for j, p := range []struct{ kind, body string }{
			{"application/json-patch+json", `[{"op":"add","path":"/status","value":%s}]`},
			{"application/merge-patch+json", `{"status":%s}`},
			{"application/strategic-merge-patch+json", `{"status":%s}`},
			{"application/apply-patch+yaml", fmt.Sprintf(object, `"status":%s`)},
		} {
			driver := fmt.Sprintf("driver-%d.example.com", j)
			body := fmt.Sprintf(p.body, `{"storageHealth":[{"name":"`+driver+`"}]}`)
			path, header := "/"+name+"/status?fieldManager=e2e&force=true", http.Header{"Content-Type": {p.kind}}
			if !strings.Contains(p.kind, "apply") {
				path = "/" + name + "/status"
			}
			if a := s.Call(client, "PATCH", w.old.DirectURL()+csiNodes+path, body, header); a.Status != 404 {
				s.Errorf("%s directly at the old server answered %d, want 404: %s", p.kind, a.Status, a.Body)
			}
			a := s.Call(client, "PATCH", front+path, body, header)
			if a.Status != 200 || !strings.Contains(string(a.Body), driver) {
				s.Errorf("%s answered %d: %s", p.kind, a.Status, a.Body)
			}
			proxied(s, a)
			proxied(s, s.Want(client, "GET", front+"/"+name+"/status", "", 200, driver))
		}
		local(s, s.Want(client, "GET", front+"/"+name, "", 200, name))
		local(s, s.Want(client, "DELETE", front+"/"+name, "", 200, name))
		// Only a subresource that some server lists is missed when it is not there.
		proxied(s, s.Want(client, "GET", w.old.FrontURL()+migrations+"/any/nothing", "", 404, "the server could not find the requested resource"))
	}
}

func proxied(s *suite.S, a *lab.Answer) {
	s.Helper()
	if got := a.Header.Values("X-Kubernetes-Peer-Proxied"); len(got) != 1 || got[0] != "true" {
		s.Errorf("x-kubernetes-peer-proxied is %q, want one true", got)
	}
}

func local(s *suite.S, a *lab.Answer) {
	s.Helper()
	if got := a.Header.Values("X-Kubernetes-Peer-Proxied"); len(got) != 0 {
		s.Errorf("the local server's answer has x-kubernetes-peer-proxied: %q", got)
	}
}

const gadgets = "/apis/e2e.example.com/v1/gadgets"

func customResource(s *suite.S, w world) {
	s.Helper()
	client := s.Client(w.Lab, w.Token("alice"), lab.HTTP2)
	s.Want(client, "POST", w.old.FrontURL()+"/apis/apiextensions.k8s.io/v1/customresourcedefinitions", `{"apiVersion":"apiextensions.k8s.io/v1",
		"kind":"CustomResourceDefinition","metadata":{"name":"gadgets.e2e.example.com"},"spec":{"group":"e2e.example.com","scope":"Cluster",
		"names":{"plural":"gadgets","kind":"Gadget"},"versions":[{"name":"v1","served":true,"storage":true,
		"schema":{"openAPIV3Schema":{"type":"object"}}}]}}`, 201, "")
	freshness(s, w, w.old, "e2e.example.com", "Current")
	freshness(s, w, w.updated, "e2e.example.com", "Current")
	viewed(s, w)
	for _, protocol := range []lab.Protocol{lab.HTTP1, lab.HTTP2} {
		client := s.Client(w.Lab, w.Token("alice"), protocol)
		for i, n := range []*plane.Node{w.old, w.updated} {
			agent := fmt.Sprint("gadgets at ", n.Name, " ", protocol)
			for j := range 20 {
				method, body := "GET", ""
				if j == 0 {
					method, body = "POST", `{"apiVersion":"e2e.example.com/v1","kind":"Gadget","metadata":{"generateName":"w-"}}`
				}
				a := s.Call(client, method, n.FrontURL()+gadgets, body, http.Header{"User-Agent": {agent}})
				if a.Status >= 300 {
					s.Fatalf("%s of gadgets at %s answered %d: %s", method, n.Name, a.Status, a.Body)
				}
				local(s, a)
			}
			if counts := auditCounts(s, agent, 20, w.old, w.updated); counts[i] != 20 {
				s.Errorf("%s: the servers got %v requests, want all local", agent, counts)
			}
		}
	}
}

func aggregatedEverywhere(s *suite.S, w world, x *extension) {
	s.Helper()
	freshness(s, w, w.old, extensionGroup, "Current")
	freshness(s, w, w.updated, extensionGroup, "Current")
	viewed(s, w)
	for _, n := range []*plane.Node{w.old, w.updated} {
		echoedBy(s, w, n, n, 10)
	}
}

// echoedBy asks for echoes at one node's front, and wants them to come by way of another's server.
func echoedBy(s *suite.S, w world, at, by *plane.Node, requests int) {
	s.Helper()
	for _, protocol := range []lab.Protocol{lab.HTTP1, lab.HTTP2} {
		client := s.Client(w.Lab, w.Token("alice"), protocol)
		for range requests {
			a := s.Want(client, "GET", at.FrontURL()+echoes+"/one", "", 200, "")
			var e echo
			if err := json.Unmarshal(a.Body, &e); err != nil || e.By != by.Name {
				s.Fatalf("at the front of %s the extension apiserver was asked by %q, want %q (%v)", at.Name, e.By, by.Name, err)
			}
			if at == by {
				local(s, a)
			} else {
				proxied(s, a)
			}
		}
	}
}

func aggregatedAtOne(s *suite.S, w world, x *extension) {
	s.Helper()
	keepAvailable(s, w)
	x.cutOff(w.old, true)
	x.touch(s, w, "the old server is cut off")
	freshness(s, w, w.old, extensionGroup, "Stale")
	freshness(s, w, w.updated, extensionGroup, "Current")
	viewed(s, w)
	s.Want(s.Client(w.Lab, w.Token("alice"), lab.HTTP1), "GET", w.old.DirectURL()+echoes+"/one", "", 503, "")
	echoedBy(s, w, w.old, w.updated, 10)
	echoedBy(s, w, w.updated, w.updated, 10)

	x.cutOff(w.old, false)
	x.touch(s, w, "the old server reaches it again")
	freshness(s, w, w.old, extensionGroup, "Current")
	viewed(s, w)
	echoedBy(s, w, w.old, w.old, 10)
}

// keepAvailable has the API servers refuse to write that the aggregated API is not available. Its status is one object
// for all of them, so each writes over what the others found, many times a second, and even a server that reaches it
// answers 503 in between. That is Kubernetes' own, and not what is tried here.
func keepAvailable(s *suite.S, w world) {
	s.Helper()
	client := s.Client(w.Lab, w.Admin(), lab.HTTP1)
	api := w.updated.DirectURL() + "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolic"
	s.Want(client, "POST", api+"ies", `{"apiVersion":"admissionregistration.k8s.io/v1","kind":"ValidatingAdmissionPolicy","metadata":{"name":"available"},
		"spec":{"failurePolicy":"Fail","matchConstraints":{"resourceRules":[{"apiGroups":["apiregistration.k8s.io"],"apiVersions":["v1"],
		"operations":["UPDATE"],"resources":["apiservices/status"]}]},
		"validations":[{"expression":"object.status.conditions.all(c, c.status != 'False')","message":"it stays available"}]}}`, 201, "")
	s.Want(client, "POST", api+"ybindings", `{"apiVersion":"admissionregistration.k8s.io/v1","kind":"ValidatingAdmissionPolicyBinding",
		"metadata":{"name":"available"},"spec":{"policyName":"available","validationActions":["Deny"]}}`, 201, "")
	for _, n := range []*plane.Node{w.old, w.updated} {
		err := plane.Eventually(s.Ctx, "the policy is in force at "+n.Name, func() error {
			a := s.Call(client, "PATCH", n.DirectURL()+extensionAPI+"/v1."+extensionGroup+"/status?dryRun=All",
				`{"status":{"conditions":[{"type":"Available","status":"False","reason":"Test","message":"","lastTransitionTime":"2026-01-01T00:00:00Z"}]}}`,
				http.Header{"Content-Type": {"application/merge-patch+json"}})
			if a.Status != 422 || !strings.Contains(string(a.Body), "it stays available") {
				return fmt.Errorf("answered %d: %s", a.Status, a.Body)
			}
			return nil
		})
		if err != nil {
			s.Fatal(err)
		}
	}
}

// freshness waits until a server itself lists a group as Current or as Stale.
func freshness(s *suite.S, w world, n *plane.Node, group, want string) {
	s.Helper()
	client := s.Client(w.Lab, w.Admin(), lab.HTTP1)
	accept := http.Header{"Accept": {"application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"}}
	ctx, cancel := context.WithTimeout(s.Ctx, 30*time.Second)
	defer cancel()
	err := plane.Eventually(ctx, n.Name+" lists "+group+" as "+want, func() error {
		var list struct {
			Items []struct {
				Metadata struct{ Name string }
				Versions []struct{ Freshness string }
			}
		}
		if err := json.Unmarshal(s.Call(client, "GET", n.DirectURL()+"/apis", "", accept).Body, &list); err != nil {
			return err
		}
		for _, g := range list.Items {
			if g.Metadata.Name == group {
				if got := g.Versions[0].Freshness; got != want {
					return fmt.Errorf("it is %s", got)
				}
				return nil
			}
		}
		return errors.New("it is not listed")
	})
	if err != nil {
		s.Fatal(err)
	}
}

// viewed waits until every xds-server has read every server after now, and once more: what it read first has then
// reached its Envoy.
func viewed(s *suite.S, w world) {
	s.Helper()
	for range 2 {
		now := float64(time.Now().UnixMilli()) / 1000
		for _, n := range w.Plane.Nodes {
			err := plane.Eventually(s.Ctx, "the xds-server of "+n.Name+" has read every server", func() error {
				a := s.Call(http.DefaultClient, "GET", n.AdminURL+"/metrics", "", nil)
				read := 0
				for scanner := bufio.NewScanner(bytes.NewReader(a.Body)); scanner.Scan(); {
					if rest, ok := strings.CutPrefix(scanner.Text(), "xds_server_view_confirmed_timestamp_seconds{"); ok {
						_, value, _ := strings.Cut(rest, "} ")
						if at, err := strconv.ParseFloat(value, 64); err == nil && at > now {
							read++
						}
					}
				}
				if read != len(w.Plane.Nodes) {
					return fmt.Errorf("it has read %d", read)
				}
				return nil
			})
			if err != nil {
				s.Fatal(err)
			}
		}
	}
}
