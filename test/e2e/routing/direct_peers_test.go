package routing

import (
	"regexp"
	"strings"
	"testing"

	"xds-server/test/e2e/suite"
	"xds-server/test/lab"
	"xds-server/test/plane"
)

func TestPeersReachedAtTheirApiserversOwnPort(t *testing.T) {
	// Both scenarios in one control plane, since each costs a start.
	w := alone(t, lab.Config{Nodes: []lab.NodeConfig{
		{Name: "old", Version: lab.Kube136}, {Name: "new", Version: lab.Kube137}, {Name: "open", Version: lab.Kube136},
	}}, plane.Options{Direct: true, Edit: func(bootstrap string) string {
		if strings.Contains(bootstrap, `id: "open"`) {
			return regexp.MustCompile(`prefix: "?x-remote-"?,`).ReplaceAllString(bootstrap, "prefix: x-not-remote-,")
		}
		return bootstrap + "# as it is\n"
	}})

	suite.Scenario(t, "10-direct", "a peer that is reached at its apiserver's own port takes every credential for the same user", func(s *suite.S) {
		credentials := tokens(s, w)
		for _, n := range subjects() {
			switch n.name {
			case "several O", "commas", "non-ASCII", "a UID", "an empty CN", "last of two CNs empty":
				credentials = append(credentials, namedCredential{name: n.name, Credential: lab.Certificate(clientCertificate(s, w.PKI.CA, n.der))})
			}
		}
		sameAtThePeer(s, w, credentials)
	})

	suite.Scenario(t, "11-negative", "without the strip in the bootstrap a client does gain what it writes into X-Remote-Extra-*", func(s *suite.S) {
		open := w.Plane.Nodes["open"]
		found := map[string]int{}
		for _, c := range smugglers(s, w) {
			for _, problem := range smuggle(s, w, open, c, 1) {
				if strings.Contains(problem, intruder) {
					found[c.name]++
				}
			}
		}
		if found["certificate"] == 0 {
			s.Errorf("the test for smuggled headers noticed nothing: %v", found)
		}
		if len(intruders(s, w, open)) == 0 {
			s.Error("the audit log shows no intruder")
		}
		// Users and groups have a second safeguard, in the filter itself.
		if len(found) > 1 {
			s.Errorf("more than extras could be smuggled: %v", found)
		}
	})
}
