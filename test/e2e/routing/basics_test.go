package routing

import (
	"testing"

	"xds-server/test/e2e/suite"
	"xds-server/test/lab"
)

const migrations = "/apis/storagemigration.k8s.io/v1/storageversionmigrations"

func TestAMissingObjectIsThePeersOwn404(t *testing.T) {
	suite.Scenario(t, "6", "a missing object of a peer-only API is the peer's 404 with details.name", func(s *suite.S) {
		w := upgrade(s)
		for _, protocol := range []lab.Protocol{lab.HTTP1, lab.HTTP2} {
			client := s.Client(w.Lab, w.Token("alice"), protocol)
			for range 50 {
				a := s.Want(client, "GET", w.old.FrontURL()+migrations+"/missing", "", 404, `"details":{"name":"missing"`)
				if got := a.Header.Values("X-Kubernetes-Peer-Proxied"); len(got) != 1 || got[0] != "true" {
					s.Fatalf("x-kubernetes-peer-proxied is %q, want one true", got)
				}
			}
		}
	})
}
