package documents

import (
	"encoding/hex"
	"flag"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"xds-server/pkg/discovery"
)

var update = flag.Bool("update", false, "rewrite the golden files")

// Two servers, each with something that the other has not: this is what clients get, to the byte, in every form and
// encoding.
func TestTwoServersAreOneToEveryClient(t *testing.T) {
	s := Compile([]discovery.Observation{
		server("a", core(), apps("Deployment"), group("old.test", version(gv("old.test", "v1alpha1"), "Thing"))),
		server("b", core(), apps("Deployment", "Rollout"), group("new.test",
			version(gv("new.test", "v1"), "Gadget"), version(gv("new.test", "v1beta1"), "Gadget"))),
	}, true)

	legacy := []string{"application/json", "application/yaml", "application/vnd.kubernetes.protobuf"}
	all := append([]string{asV2, asV2Beta1, asYAML, asProto}, legacy...)
	var out strings.Builder
	for _, ask := range []struct {
		path    string
		accepts []string
	}{
		{"/api", all}, {"/apis", all}, {"/api/v1", legacy}, {"/apis/apps", legacy}, {"/apis/apps/v1", legacy},
		{"/apis/new.test", legacy}, {"/apis/new.test/v1beta1", legacy[:1]}, {"/apis/old.test", legacy[:1]},
	} {
		for _, a := range ask.accepts {
			res := get(t, s, ask.path, accept(a))
			fmt.Fprintf(&out, "GET %s\nAccept: %s\n\n%d\n", ask.path, a, res.StatusCode)
			for _, name := range slices.Sorted(maps.Keys(res.Header)) {
				fmt.Fprintf(&out, "%s: %s\n", name, strings.Join(res.Header[name], ", "))
			}
			b := body(t, res)
			if strings.Contains(a, "protobuf") {
				b = []byte(hex.Dump(b))
			}
			fmt.Fprintf(&out, "\n%s\n", b)
		}
	}
	const golden = "testdata/documents.golden"
	if *update {
		if err := os.MkdirAll("testdata", 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(golden, []byte(out.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), out.String()); diff != "" {
		t.Errorf("(-want +got; -update rewrites it):\n%.3000s", diff)
	}
}
