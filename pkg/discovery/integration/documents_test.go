package integration

import (
	"bytes"
	"encoding/json"
	"net/url"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"xds-server/pkg/discovery"
	"xds-server/test/lab"
)

// documentsAreTheServersOwn compares what was read beside a view with what the server says when asked.
func documentsAreTheServersOwn(t *testing.T, l *lab.Lab, n *lab.Node, observed func() discovery.Observation) {
	client := l.Client(l.Admin(), lab.HTTP2)
	defer client.CloseIdleConnections()
	get := func(path string, into any) []byte {
		t.Helper()
		a, err := lab.Call(t.Context(), client, "GET", n.DirectURL()+path, "", map[string][]string{"Accept": {"application/json"}})
		if err != nil || a.Status != 200 {
			t.Fatalf("GET %s of %s: %v %v", path, n.Name, a, err)
		}
		if into != nil {
			if err := json.Unmarshal(a.Body, into); err != nil {
				t.Fatalf("%s of %s: %v", path, n.Name, err)
			}
		}
		return a.Body
	}

	// Right after a start, a server's documents follow one another.
	eventually(t, n.Name+"'s documents are read whole", 30*time.Second, func() bool {
		d := observed().Documents
		if d == nil || d.OpenAPIV2 == nil {
			return false
		}
		var index struct {
			Paths map[string]struct {
				ServerRelativeURL string `json:"serverRelativeURL"`
			} `json:"paths"`
		}
		get("/openapi/v3", &index)
		for path, entry := range index.Paths {
			u, err := url.Parse(entry.ServerRelativeURL)
			if err != nil || d.OpenAPIV3[path].Hash != u.Query().Get("hash") {
				return false
			}
		}
		// The two versions' documents differ, if only by the version that they name.
		return len(d.OpenAPIV3) == len(index.Paths) && d.OpenAPIV3["apis/apps/v1"].JSON != nil
	})
	d := observed().Documents
	for _, path := range []string{"apis/apps/v1", "api/v1"} {
		if !bytes.Equal(d.OpenAPIV3[path].JSON, get("/openapi/v3/"+path, nil)) {
			t.Errorf("%s: /openapi/v3/%s is not the server's own", n.Name, path)
		}
	}
	if !bytes.Equal(d.OpenAPIV2.JSON, get("/openapi/v2", nil)) {
		t.Errorf("%s: /openapi/v2 is not the server's own", n.Name)
	}

	var core metav1.APIVersions
	get("/api", &core)
	if len(d.Addresses) != 1 || d.Addresses[0] != core.ServerAddressByClientCIDRs[0] {
		t.Errorf("%s: addresses %v, want %v", n.Name, d.Addresses, core.ServerAddressByClientCIDRs)
	}
	var groups metav1.APIGroupList
	get("/apis", &groups)
	listed, versions := map[schema.GroupVersion]bool{}, []string{"v1"}
	for _, gv := range d.Listed {
		listed[gv] = true
	}
	for _, g := range groups.Groups {
		for _, v := range g.Versions {
			if !listed[schema.GroupVersion{Group: g.Name, Version: v.Version}] {
				t.Errorf("%s: %s is not listed", n.Name, v.GroupVersion)
			}
			versions = append(versions, v.GroupVersion)
		}
	}
	hashes := 0
	for _, gv := range versions {
		path := "/apis/" + gv
		if !strings.Contains(gv, "/") {
			path = "/api/" + gv
		}
		parsed, err := schema.ParseGroupVersion(gv)
		if err != nil {
			t.Fatal(err)
		}
		if _, served := d.StorageVersionHashes[parsed]; !served {
			continue // another server's
		}
		var list metav1.APIResourceList
		get(path, &list)
		for _, r := range list.APIResources {
			if r.StorageVersionHash != "" {
				hashes++
			}
			if got := d.StorageVersionHashes[parsed][r.Name]; got != r.StorageVersionHash {
				t.Errorf("%s: storageVersionHash of %s %s is %q, want %q", n.Name, gv, r.Name, got, r.StorageVersionHash)
			}
		}
	}
	if hashes < 30 {
		t.Errorf("%s: only %d storageVersionHashes were compared", n.Name, hashes)
	}
}
