package routing

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"time"

	"xds-server/test/e2e/suite"
	"xds-server/test/plane"
)

// counter reads one counter or gauge of a node's Envoy; one that does not exist yet is 0.
func counter(s *suite.S, n *plane.Node, name string) int {
	s.Helper()
	b, err := n.EnvoyAdmin(s.Ctx, "GET", "/stats?filter=^"+strings.ReplaceAll(name, ".", `\.`)+"$")
	if err != nil {
		s.Fatal(err)
	}
	_, value, ok := strings.Cut(strings.TrimSpace(string(b)), ": ")
	if !ok {
		return 0
	}
	v, err := strconv.Atoi(value)
	if err != nil {
		s.Fatalf("%s is %q: %v", name, b, err)
	}
	return v
}

// routesOf is the version of a node's routes in its Envoy's config dump, and the routes themselves.
func routesOf(ctx context.Context, n *plane.Node) (version, routes string, err error) {
	b, err := n.EnvoyAdmin(ctx, "GET", "/config_dump?resource=dynamic_route_configs")
	if err != nil {
		return "", "", err
	}
	var dump struct {
		Configs []struct {
			Version string          `json:"version_info"`
			Routes  json.RawMessage `json:"route_config"`
		} `json:"configs"`
	}
	if err := json.Unmarshal(b, &dump); err != nil {
		return "", "", fmt.Errorf("reading the config dump of %s: %w", n.Name, err)
	}
	if len(dump.Configs) != 1 {
		return "", "", fmt.Errorf("the config dump of %s has %d route configurations", n.Name, len(dump.Configs))
	}
	return dump.Configs[0].Version, string(dump.Configs[0].Routes), nil
}

// routesVersion is the version alone, which costs Envoy much less to tell.
func routesVersion(ctx context.Context, n *plane.Node) (string, error) {
	b, err := n.EnvoyAdmin(ctx, "GET", "/config_dump?resource=dynamic_route_configs&mask=version_info")
	return string(b), err
}

// clustersOf is the names of the clusters in a node's Envoy that came from an xds-server.
func clustersOf(s *suite.S, n *plane.Node) map[string]bool {
	s.Helper()
	b, err := n.EnvoyAdmin(s.Ctx, "GET", "/config_dump?resource=dynamic_active_clusters&mask=cluster.name")
	if err != nil {
		s.Fatal(err)
	}
	var dump struct {
		Configs []struct {
			Cluster struct {
				Name string `json:"name"`
			} `json:"cluster"`
		} `json:"configs"`
	}
	if err := json.Unmarshal(b, &dump); err != nil {
		s.Fatalf("reading the config dump of %s: %v", n.Name, err)
	}
	names := map[string]bool{}
	for _, c := range dump.Configs {
		names[c.Cluster.Name] = true
	}
	return names
}

// A flapWatch looks again and again whether fronts are on their routed chain, until it is stopped.
type flapWatch struct {
	cancel func()
	done   chan []string
}

func watchReady(ctx context.Context, nodes ...*plane.Node) *flapWatch {
	ctx, cancel := context.WithCancel(ctx)
	w := &flapWatch{cancel, make(chan []string, 1)}
	go func() {
		var drops []string
		tick := time.NewTicker(20 * time.Millisecond)
		defer tick.Stop()
		for {
			for _, n := range nodes {
				ready, err := n.Routed(ctx)
				if ctx.Err() == nil && (err != nil || !ready) {
					drops = append(drops, fmt.Sprintf("%s %s: ready %v, %v", time.Now().Format("15:04:05.000"), n.Name, ready, err))
				}
			}
			select {
			case <-ctx.Done():
				w.done <- drops
				return
			case <-tick.C:
			}
		}
	}()
	return w
}

// stop says when a front was seen off its routed chain.
func (w *flapWatch) stop() []string {
	w.cancel()
	return <-w.done
}
