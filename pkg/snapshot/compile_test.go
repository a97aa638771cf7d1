package snapshot

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"
	"sigs.k8s.io/yaml"

	"xds-server/pkg/peers"
	"xds-server/pkg/routing"
)

var update = flag.Bool("update", false, "rewrite the golden files")

// peersOf are servers at addresses of their own, ready but for those named.
func peersOf(unready string, names ...string) map[string]Peer {
	out := map[string]Peer{}
	for i, n := range names {
		out[n] = Peer{Server: peers.Server{Name: n, Address: fmt.Sprintf("10.0.0.%d:6445", i+1)}, Ready: n != unready}
	}
	return out
}

func entry(path string, set routing.Set) routing.Entry {
	p := strings.Split(path, "/")
	k := routing.Key{Group: p[0]}
	for i, field := range []*string{&k.Version, &k.Resource, &k.Subresource} {
		if i+1 < len(p) {
			*field = p[i+1]
		}
	}
	return routing.Entry{Key: k, Set: set}
}

func TestTablesAsGoldenFiles(t *testing.T) {
	all := routing.Set{Local: true, Peers: []string{"new"}}
	onlyNew := routing.Set{Peers: []string{"new"}}
	direct := peersOf("", "new", "old")
	direct["new"] = Peer{Server: peers.Server{Name: "new", Address: "10.0.0.1:6443", Direct: true}, Ready: true}
	for name, tt := range map[string]struct {
		table routing.Table
		known map[string]Peer
	}{
		"upgrade": {
			table: routing.Table{Node: "old", Default: all, Complete: true, Entries: []routing.Entry{
				entry("storage.k8s.io/v1/csinodes/status", onlyNew),
				entry("storagemigration.k8s.io", onlyNew),
				entry("storagemigration.k8s.io/v1", onlyNew),
				entry("storagemigration.k8s.io/v1/storageversionmigrations", onlyNew),
				entry("zoo.io/v1/relics", routing.Set{Local: true}),
			}},
			known: peersOf("", "new", "old"),
		},
		"an unready peer and an unread one": {
			table: routing.Table{Node: "old", Default: all, Entries: []routing.Entry{entry("x.io/v1/xs", onlyNew)}},
			known: peersOf("new", "new", "old"),
		},
		"a peer without an Envoy": {
			table: routing.Table{Node: "old", Default: all, Complete: true, Entries: []routing.Entry{entry("x.io/v1/xs", onlyNew)}},
			known: direct,
		},
		"documents that differ": {
			table: routing.Table{Node: "old", Default: all, Complete: true, Merged: true, Entries: []routing.Entry{
				entry("metrics.k8s.io/v1", onlyNew),
				entry("x.io/v1", onlyNew),
			}, Stale: []routing.Key{{Group: "metrics.k8s.io", Version: "v1"}}},
			known: peersOf("", "new", "old"),
		},
		"a single server": {
			table: routing.Table{Node: "old", Default: routing.Set{Local: true}, Complete: true},
			known: peersOf("", "old"),
		},
	} {
		t.Run(name, func(t *testing.T) {
			r, err := Compile(tt.table, tt.known, DefaultSecretsDir)
			if err != nil {
				t.Fatal(err)
			}
			got := asYAML(t, r)
			golden := filepath.Join("testdata", strings.ReplaceAll(name, " ", "-")+".golden.yaml")
			if *update {
				if err := os.WriteFile(golden, []byte(got), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(golden)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(string(want), got); diff != "" {
				t.Errorf("%s (-want +got; -update rewrites it):\n%s", golden, diff)
			}
		})
	}
}

// asYAML writes resources for people: protojson's random blanks go, maps are sorted.
func asYAML(t *testing.T, r Resources) string {
	t.Helper()
	var all []any
	add := func(m proto.Message) {
		b, err := protojson.MarshalOptions{UseProtoNames: true}.Marshal(m)
		if err != nil {
			t.Fatal(err)
		}
		var v any
		if err := json.Unmarshal(b, &v); err != nil {
			t.Fatal(err)
		}
		all = append(all, v)
	}
	for _, c := range r.Clusters {
		add(c)
	}
	for _, e := range r.Endpoints {
		add(e)
	}
	for _, c := range r.Routes {
		add(c)
	}
	b, err := yaml.Marshal(all)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// drawTable is a table over up to five servers with some random entries.
func drawTable(t *rapid.T) (routing.Table, map[string]Peer) {
	names := []string{"a", "b", "c", "d", "e"}[:rapid.IntRange(1, 5).Draw(t, "servers")]
	set := func(label string) routing.Set {
		s := routing.Set{Local: rapid.Bool().Draw(t, label)}
		for _, n := range names[1:] {
			if rapid.Bool().Draw(t, label) {
				s.Peers = append(s.Peers, n)
			}
		}
		if len(s.Peers) == 0 {
			s.Local = true
		}
		return s
	}
	table := routing.Table{Node: "a", Default: set("default"), Complete: rapid.Bool().Draw(t, "complete")}
	table.Default.Local = true
	for i := range rapid.IntRange(0, 8).Draw(t, "entries") {
		path := fmt.Sprintf("g%d.io/v1/rs", i/2)
		if i%2 == 1 {
			path += "/status"
		}
		table.Entries = append(table.Entries, entry(path, set(path)))
	}
	return table, peersOf(rapid.SampledFrom(names).Draw(t, "unready"), names...)
}

var clusterName = regexp.MustCompile(`cluster: (\S+)`)

// A route that names a cluster that Envoy does not have is a 503 for everybody who asks for it.
func TestEveryRouteHasItsCluster(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		table, known := drawTable(rt)
		r, err := Compile(table, known, DefaultSecretsDir)
		if err != nil {
			rt.Fatal(err)
		}
		have := []string{"local-fp", "local-plain"}
		for _, c := range r.Clusters {
			have = append(have, c.GetName())
			if err := c.ValidateAll(); err != nil {
				rt.Fatal(err)
			}
		}
		for _, m := range clusterName.FindAllStringSubmatch(asYAML(t, Resources{Routes: r.Routes}), -1) {
			if !slices.Contains(have, m[1]) {
				rt.Fatalf("a route names the cluster %s; there are %v", m[1], have)
			}
		}
		for _, e := range r.Endpoints {
			if !slices.Contains(have, e.GetClusterName()) {
				rt.Fatalf("there are endpoints for %s, but no such cluster", e.GetClusterName())
			}
		}
	})
}

func TestEqualTablesAreEqualBytes(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		table, known := drawTable(rt)
		var seen string
		for range 3 {
			r, err := Compile(table, known, DefaultSecretsDir)
			if err != nil {
				rt.Fatal(err)
			}
			var b []byte
			for _, c := range r.Clusters {
				b = append(b, deterministic(rt, c)...)
			}
			for _, c := range r.Routes {
				b = append(b, deterministic(rt, c)...)
			}
			if seen != "" && seen != string(b) {
				rt.Fatal("compiling twice gave other bytes")
			}
			seen = string(b)
		}
	})
}

func deterministic(t *rapid.T, m proto.Message) []byte {
	b, err := proto.MarshalOptions{Deterministic: true}.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestAnAddressThatEDSCanNotCarryIsAnError(t *testing.T) {
	for _, address := range []string{"", "host:1", "10.0.0.1", "10.0.0.1:x", "10.0.0.1:70000"} {
		known := map[string]Peer{"b": {Server: peers.Server{Name: "b", Address: address}}}
		_, err := Compile(routing.Table{Node: "a", Default: routing.Set{Local: true, Peers: []string{"b"}}}, known, DefaultSecretsDir)
		if err == nil || !strings.Contains(err.Error(), `"b"`) {
			t.Errorf("address %q: error is %v, want one that names the server", address, err)
		}
	}
}
