package discovery

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/runtime/schema"
)

const (
	legacyAPI  = `{"kind":"APIVersions","versions":["v1"],"serverAddressByClientCIDRs":[{"clientCIDR":"0.0.0.0/0","serverAddress":"10.0.0.1:6443"},{"clientCIDR":"fd00::/8","serverAddress":"[fd00::1]:6443"}]}`
	legacyAPIs = `{"kind":"APIGroupList","apiVersion":"v1","groups":[{"name":"b.example.com","versions":[{"groupVersion":"b.example.com/v1","version":"v1"}],"preferredVersion":{}},{"name":"apps","versions":[{"groupVersion":"apps/v1beta1","version":"v1beta1"},{"groupVersion":"apps/v1","version":"v1"}]}]}`
	legacyApps = `{"kind":"APIResourceList","apiVersion":"v1","groupVersion":"apps/v1","resources":[{"name":"deployments","singularName":"deployment","namespaced":true,"kind":"Deployment","verbs":["get"],"storageVersionHash":"8aSe+NMegvE="},{"name":"deployments/status","verbs":["get"]}]}`
)

var apps = schema.GroupVersion{Group: "apps", Version: "v1"}

func TestTheLegacyDocumentsAreRead(t *testing.T) {
	addresses, _, err := parseAddresses(strings.NewReader(legacyAPI))
	if got := fmt.Sprint(addresses); err != nil || got != "[{0.0.0.0/0 10.0.0.1:6443} {fd00::/8 [fd00::1]:6443}]" {
		t.Errorf("%s %v", got, err)
	}
	listed, _, err := parseGroups(strings.NewReader(legacyAPIs))
	if got := fmt.Sprint(listed); err != nil || got != "[apps/v1 apps/v1beta1 b.example.com/v1]" {
		t.Errorf("%s %v", got, err)
	}
	hashes, _, err := parseStorage(strings.NewReader(legacyApps), apps)
	if got := fmt.Sprint(hashes); err != nil || got != "map[deployments:8aSe+NMegvE=]" {
		t.Errorf("%s %v", got, err)
	}
}

func TestNamesThatNoServerHasAreLeftOutOfLegacyDocuments(t *testing.T) {
	addresses, left, err := parseAddresses(strings.NewReader(`{"kind":"APIVersions","serverAddressByClientCIDRs":[{"clientCIDR":"everybody","serverAddress":"a"},` +
		`{"clientCIDR":"10.0.0.0/8","serverAddress":"a\r\nb"},{"clientCIDR":"10.0.0.0/8","serverAddress":""},{"clientCIDR":"10.0.0.0/8","serverAddress":"ok.example.com"}]}`))
	if err != nil || len(addresses) != 1 || left.dropped[reasonInvalid] != 3 {
		t.Errorf("%v %v %v", addresses, left, err)
	}
	listed, left, err := parseGroups(strings.NewReader(`{"kind":"APIGroupList","groups":[{"name":"","versions":[{"version":"v1"}]},{"name":"A b","versions":[{"version":"v1"}]},` +
		`{"name":"a","versions":[{"version":"../v1"},{"version":"v1"},{"version":"v1"},{}]}]}`))
	if err != nil || fmt.Sprint(listed) != "[a/v1]" || left.dropped[reasonInvalid] != 4 || left.dropped[reasonDuplicate] != 1 {
		t.Errorf("%v %v %v", listed, left, err)
	}
	hashes, left, err := parseStorage(strings.NewReader(`{"kind":"APIResourceList","resources":[{"name":"a","storageVersionHash":"b c"},{"name":"../a","storageVersionHash":"a"},`+
		`{"name":"b","storageVersionHash":"a"},{"name":"b","storageVersionHash":"c"}]}`), apps)
	if err != nil || fmt.Sprint(hashes) != "map[b:a]" || left.dropped[reasonInvalid] != 2 || left.dropped[reasonDuplicate] != 1 {
		t.Errorf("%v %v %v", hashes, left, err)
	}
}

func TestABrokenLegacyDocumentIsNone(t *testing.T) {
	many := func(kind, list, entry string, n int) string {
		return `{"kind":"` + kind + `","` + list + `":[` + entry + strings.Repeat(","+entry, n) + `]}`
	}
	for name, doc := range map[string]string{
		"nothing": "", "half": legacyAPIs[:60], "another kind": `{"kind":"Status"}`, "no list": `{"kind":"APIGroupList"}`, "two": legacyAPIs + legacyAPIs,
		"words": `{"kind":"APIGroupList","groups":"none"}`, "numbers": `{"kind":"APIGroupList","groups":[{"name":1}]}`,
		"aggregated": string(render(groups("apps/v1/deployments"))),
	} {
		if _, _, err := parseGroups(strings.NewReader(doc)); err == nil {
			t.Errorf("%s: taken", name)
		}
	}
	_, _, err := parseGroups(strings.NewReader(many("APIGroupList", "groups", "{}", maxGroups)))
	if !errors.Is(err, errTooLarge) {
		t.Errorf("groups: %v", err)
	}
	_, _, err = parseGroups(strings.NewReader(`{"kind":"APIGroupList","groups":[{"versions":[{}` + strings.Repeat(",{}", maxVersions) + `]}]}`))
	if !errors.Is(err, errTooLarge) {
		t.Errorf("versions: %v", err)
	}
	_, _, err = parseAddresses(strings.NewReader(many("APIVersions", "serverAddressByClientCIDRs", `{"clientCIDR":"10.0.0.0/8","serverAddress":"a"}`, maxAddresses)))
	if !errors.Is(err, errTooLarge) {
		t.Errorf("addresses: %v", err)
	}
	_, _, err = parseStorage(strings.NewReader(many("APIResourceList", "resources", `{}`, maxResources)), apps)
	if !errors.Is(err, errTooLarge) {
		t.Errorf("resources: %v", err)
	}
}

func FuzzTheLegacyDocuments(f *testing.F) {
	for _, doc := range []string{legacyAPI, legacyAPIs, legacyApps} {
		f.Add([]byte(doc))
	}
	f.Fuzz(func(t *testing.T, doc []byte) {
		if addresses, _, err := parseAddresses(bytes.NewReader(doc)); err == nil {
			for _, a := range addresses {
				if !validAddress(a.ServerAddress) || strings.ContainsAny(a.ClientCIDR+a.ServerAddress, "\r\n \"\\") {
					t.Errorf("%+v", a)
				}
			}
		}
		if listed, _, err := parseGroups(bytes.NewReader(doc)); err == nil {
			for _, gv := range listed {
				if gv.Group == "" || !validGroup(gv.Group) || !validVersion(gv.Version) {
					t.Errorf("%+v", gv)
				}
			}
			if len(slices.Compact(listed)) != len(listed) {
				t.Errorf("something is listed twice: %v", listed)
			}
		}
		if hashes, _, err := parseStorage(bytes.NewReader(doc), apps); err == nil {
			for name, h := range hashes {
				if !validSubresource(name) || !validStorageHash(h) {
					t.Errorf("%q: %q", name, h)
				}
			}
		}
	})
}
