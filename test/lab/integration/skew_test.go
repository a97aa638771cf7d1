package integration

import (
	"encoding/json"
	"testing"

	"xds-server/test/lab"
)

// The older pair that the end-to-end tests run has to start, too.
func TestLabStartsServersTwoVersionsApart(t *testing.T) {
	l := lab.ForTest(t, lab.Config{Nodes: []lab.NodeConfig{
		{Name: "oldest", Version: lab.Kube134},
		{Name: "old", Version: lab.Kube136},
	}})
	for _, n := range []*lab.Node{l.Node("oldest"), l.Node("old")} {
		var version struct{ GitVersion, Major, Minor string }
		mustDecode(t, call(t, l, n, l.Admin(), "/version").Body, &version)
		if version.GitVersion != "v"+n.Server.Version || version.Major != "1" {
			t.Errorf("the server of %s says that it is %+v", n.Name, version)
		}
		var list struct{ Groups []struct{ Name string } }
		if a := call(t, l, n, l.Token("alice"), "/apis"); json.Unmarshal(a.Body, &list) != nil || len(list.Groups) < 10 {
			t.Errorf("%s lists %s", n.Name, a.Body)
		}
	}
	wantList(t, l, l.Node("oldest"), "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices/kubernetes",
		[]string{l.Node("oldest").IP, l.Node("old").IP}, func(b []byte) []string {
			var slice struct {
				Endpoints []struct{ Addresses []string }
			}
			mustDecode(t, b, &slice)
			var found []string
			for _, e := range slice.Endpoints {
				found = append(found, e.Addresses...)
			}
			return found
		})
}
