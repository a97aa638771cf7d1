package discovery

import (
	"strings"
	"testing"

	"xds-server/test/e2e/suite"
	"xds-server/test/lab"
	"xds-server/test/plane"
)

// A pair is a control plane of two servers that differ in both directions, and what its scenarios try.
type pair struct {
	world
	name string
	// peerOnly is a resource that only the new server serves, as a claim and as a path.
	peerOnly, path string
}

// The older server of this pair still has the aggregated discovery of old clients.
func TestFrom134To136(t *testing.T) {
	w := alone(t, plane.Options{Failover: true},
		lab.NodeConfig{Name: "old", Version: lab.Kube134, ExtraArgs: []string{"--feature-gates=AggregatedDiscoveryRemoveBetaType=false"}},
		lab.NodeConfig{Name: "new", Version: lab.Kube136, RuntimeConfig: []string{"batch/v1=false"}})
	p := pair{w, "1.34+1.36", "admissionregistration.k8s.io/v1/mutatingadmissionpolicies:list",
		"/apis/admissionregistration.k8s.io/v1/mutatingadmissionpolicies"}
	testForms(t, p)
	suite.Scenario(t, "A4-old@"+p.name, "client-go 0.26, which knows v2beta1 only, finds peer-only kinds and does not panic", func(s *suite.S) {
		oldClient(s, p)
	})
	testNewcomer(t, p)
	testLeaving(t, p)
}

func TestFrom136To137(t *testing.T) {
	w := alone(t, plane.Options{Failover: true},
		lab.NodeConfig{Name: "old", Version: lab.Kube136, RuntimeConfig: []string{"policy/v1=false"}},
		lab.NodeConfig{Name: "new", Version: lab.Kube137, RuntimeConfig: []string{"batch/v1=false"}})
	p := pair{w, "1.36+1.37", "storagemigration.k8s.io/v1/storageversionmigrations:list", migrations}
	testForms(t, p)
	testClients(t, p)
	testFollowing(t, p)
	testFilter(t, p)
	testOutage(t, p)
	testNewcomer(t, p)
	testLeaving(t, p)
	testEqualViews(t, p)
}

const (
	migrations   = "/apis/storagemigration.k8s.io/v1/storageversionmigrations"
	trustBundles = "/apis/certificates.k8s.io/v1/clustertrustbundles"
)

// testForms are the scenarios of what each document says, which leave the servers as they were.
func testForms(t *testing.T, p pair) {
	suite.Scenario(t, "13@"+p.name, "aggregated /apis in JSON and protobuf is the same through all fronts, has all that is served in kube-aware order, and 304 on repeat", func(s *suite.S) {
		aggregatedForms(s, p)
	})
	suite.Scenario(t, "14@"+p.name, "every form of every document has what every server serves; nopeer is the local server's own; without a front they differ", func(s *suite.S) {
		everyForm(s, p)
	})
	suite.Scenario(t, "15@"+p.name, "a deleted CRD is gone from every document of every front within seconds, for good", func(s *suite.S) {
		deletedCRD(s, p)
	})
	suite.Scenario(t, "22@"+p.name, "who may not read a document gets the server's own 401 or 403, and nothing of the merged body", func(s *suite.S) {
		refused(s, p)
	})
}

func testNewcomer(t *testing.T, p pair) {
	suite.Scenario(t, "A1-newcomer@"+p.name, "with the other server down, of this node's xds-server that starts without state no document is silently partial, and each is there", func(s *suite.S) {
		before := settled(s, p.world, p.nodes, "before", union(s, p.world, p.nodes...))
		p.updated.Server.Kill()
		defer func() { // for the scenarios after this
			if err := p.updated.Server.Restart(s.Ctx, p.updated.Server.Version); err != nil {
				s.Error(err)
			}
		}()
		docs := settled(s, p.world, p.nodes, "the new server down", func(groupList) error { return nil })
		if err := before.differences(docs); err != nil {
			s.Errorf("the new server down: %v", err)
		}
		resource := p.path[len("/apis/"):]
		newcomer(s, p.world, p.old, before, resource[:strings.LastIndex(resource, "/")])
	})
}

func testLeaving(t *testing.T, p pair) {
	suite.Scenario(t, "16@"+p.name, "a server leaves for good: what only it served stays in every document for the hold, then it is gone everywhere, and 404", func(s *suite.S) {
		leaves(s, p)
	})
}
