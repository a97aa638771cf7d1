package xds

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap/zaptest"

	"xds-server/pkg/snapshot"
	"xds-server/test/lab"
)

// realEnvoy is a running Envoy process.
type realEnvoy struct {
	t      *testing.T
	admin  string
	front  string
	client *http.Client
}

// startEnvoy returns once the front listener is there.
func startEnvoy(t *testing.T, address, cluster string) *realEnvoy {
	t.Helper()
	if err := lab.Parts(t.Context(), os.Stderr, lab.Envoy); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	config, admin := filepath.Join(dir, "envoy.yaml"), filepath.Join(dir, "admin")
	if err := os.WriteFile(config, fmt.Appendf(nil, bootstrap, "a", address, cluster), 0o600); err != nil {
		t.Fatal(err)
	}
	output, err := os.Create(filepath.Join(dir, "log"))
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(lab.Envoy.Path(), "-c", config, "--admin-address-path", admin, "--concurrency", "2", "--use-dynamic-base-id", "-l", "info")
	cmd.Stdout, cmd.Stderr = output, output
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	e := &realEnvoy{t: t, client: &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 10}, Timeout: 10 * time.Second}}
	t.Cleanup(func() {
		e.client.CloseIdleConnections()
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		_ = output.Close()
		if t.Failed() {
			log, _ := os.ReadFile(output.Name())
			t.Logf("Envoy says:\n%s", log)
		}
	})
	e.until("the admin address", func() bool {
		b, err := os.ReadFile(admin)
		e.admin = string(b)
		return err == nil && len(b) > 0
	})
	e.until("the front listener", func() bool {
		_, e.front, _ = strings.Cut(strings.TrimSpace(e.get("http://"+e.admin+"/listeners")), "::")
		return e.front != "" && strings.HasPrefix(e.get("http://"+e.admin+"/ready"), "LIVE")
	})
	return e
}

func (e *realEnvoy) get(url string) string {
	resp, err := e.client.Get(url)
	if err != nil {
		return ""
	}
	defer func() { _ = resp.Body.Close() }()
	b, _ := io.ReadAll(resp.Body)
	return string(b)
}

// until polls what can only be polled.
func (e *realEnvoy) until(what string, ok func() bool) {
	e.t.Helper()
	deadline := time.After(15 * time.Second)
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-deadline:
			e.t.Fatalf("waited in vain for %s", what)
		case <-tick.C:
		}
	}
}

// config is what the config dump says: the version of the routes, and the names of the clusters.
func (e *realEnvoy) config() (version string, clusters []string) {
	e.t.Helper()
	var dump struct {
		Configs []struct {
			DynamicRouteConfigs []struct {
				VersionInfo string          `json:"version_info"`
				ErrorState  json.RawMessage `json:"error_state"`
			} `json:"dynamic_route_configs"`
			DynamicActiveClusters []struct {
				Cluster struct{ Name string }
			} `json:"dynamic_active_clusters"`
		}
	}
	if err := json.Unmarshal([]byte(e.get("http://"+e.admin+"/config_dump")), &dump); err != nil {
		e.t.Fatal(err)
	}
	for _, c := range dump.Configs {
		for _, r := range c.DynamicRouteConfigs {
			if r.ErrorState != nil {
				e.t.Errorf("routes: %s", r.ErrorState)
			}
			version = r.VersionInfo
		}
		for _, c := range c.DynamicActiveClusters {
			clusters = append(clusters, c.Cluster.Name)
		}
	}
	slices.Sort(clusters)
	return version, clusters
}

func (e *realEnvoy) stat(name string) (n int) {
	e.t.Helper()
	s := e.get("http://" + e.admin + "/stats?filter=^" + name + "$")
	if _, err := fmt.Sscanf(s, name+": %d", &n); err != nil {
		e.t.Fatalf("%s: %q", name, s)
	}
	return n
}

func (e *realEnvoy) ready() bool {
	return strings.Contains(e.get("http://"+e.admin+"/runtime"), `"final_value": "100"`)
}

// load sends requests, one after the other on two connections, until stop is called, which returns how many there were.
func (e *realEnvoy) load() (stop func() int64) {
	ctx, cancel := context.WithCancel(context.Background())
	var n atomic.Int64
	ended := make(chan struct{})
	for range 2 {
		go func() {
			defer func() { ended <- struct{}{} }()
			for ctx.Err() == nil {
				req, _ := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+e.front+"/x", nil)
				resp, err := e.client.Do(req)
				if errors.Is(err, context.Canceled) {
					return
				}
				n.Add(1)
				if err != nil {
					e.t.Error(err)
					return
				}
				_, _ = io.Copy(io.Discard, resp.Body)
				_ = resp.Body.Close()
				if resp.StatusCode != http.StatusOK {
					e.t.Errorf("a request got %d (%s)", resp.StatusCode, resp.Header.Get("x-envoy-response-flags"))
				}
			}
		}()
	}
	return func() int64 { cancel(); <-ended; <-ended; return n.Load() }
}

// serve runs a server on the socket until stop is called.
func serve(t *testing.T, socket string, p *snapshot.Publisher) (stop func()) {
	t.Helper()
	s, err := New(Config{Socket: socket, Publisher: p, Log: zaptest.NewLogger(t)})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error)
	go func() { done <- s.Run(ctx) }()
	return func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
}

func TestARealEnvoyIsServedOverMutualTLS(t *testing.T) {
	a := newAuthority(t)
	c := newTCP(t, a)
	cert, key := a.pair("node-a", time.Hour)
	c.write("client.crt", cert)
	c.write("client.key", key)
	if err := c.Publisher.Set("a", table("b")); err != nil {
		t.Fatal(err)
	}
	tcp := run(t, c.Config).(*net.TCPAddr)
	e := startEnvoy(t, fmt.Sprintf("{socket_address: {address: %s, port_value: %d}}", tcp.IP, tcp.Port), fmt.Sprintf(clientTLS, c.dir))
	e.until("ready", e.ready)
}

func TestARealEnvoyTakesEveryTableAndLosesNoRequest(t *testing.T) {
	backend := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	defer backend.Close()
	tcp := backend.Listener.Addr().(*net.TCPAddr)
	// one routes everything to one cluster.
	one := func(cluster string) snapshot.Resources {
		r := table(cluster)
		r.Endpoints[0] = load(cluster, tcp.IP.String(), uint32(tcp.Port))
		r.Routes[0].VirtualHosts[0].Routes[0].Match.PathSpecifier = &routev3.RouteMatch_Prefix{Prefix: "/"}
		return r
	}
	publisher := func() *snapshot.Publisher {
		return snapshot.NewPublisher(zaptest.NewLogger(t), prometheus.NewRegistry())
	}
	set := func(p *snapshot.Publisher, r snapshot.Resources) {
		t.Helper()
		if err := p.Set("a", r); err != nil {
			t.Fatal(err)
		}
	}
	socket := filepath.Join(t.TempDir(), "xds.sock")
	p := publisher()
	set(p, one("first"))
	stop := serve(t, socket, p)
	start := time.Now()
	e := startEnvoy(t, fmt.Sprintf("{pipe: {path: %s}}", socket), "")
	e.until("ready", e.ready)
	t.Logf("ready %v after the start of Envoy", time.Since(start).Round(time.Millisecond))

	requests := e.load()
	versions := map[string]bool{}
	for i := range 20 {
		name := fmt.Sprint("table-", i)
		before, _ := e.config()
		set(p, one(name))
		e.until(name, func() bool {
			version, clusters := e.config()
			versions[version] = true
			return version != before && slices.Equal(clusters, []string{name})
		})
	}
	t.Logf("20 tables taken, %d versions seen, under %d requests", len(versions), requests())
	if len(versions) != 21 {
		t.Errorf("%d versions of the routes in the config dump, not 21", len(versions))
	}
	for _, name := range []string{"cluster_manager.cds.update_rejected", "http.front.rds.front.update_rejected"} {
		if n := e.stat(name); n != 0 {
			t.Errorf("%s is %d", name, n)
		}
	}

	t.Run("a restarted server with another table", func(t *testing.T) {
		loads := e.stat("runtime.load_success")
		requests := e.load()
		stop()
		p = publisher()
		stop = serve(t, socket, p)
		// Connected, and told nothing: this server knows nothing yet.
		e.until("the Envoy", func() bool { return len(p.Status()) == 1 && len(p.Status()[0].Streams[0].Types) == 4 })
		set(p, one("restarted"))
		e.until("the new table", func() bool {
			_, clusters := e.config()
			return slices.Equal(clusters, []string{"restarted"})
		})
		t.Logf("%d requests", requests())
		if now := e.stat("runtime.load_success"); now != loads || !e.ready() {
			t.Errorf("the runtime was loaded %d times more, ready is %v", now-loads, e.ready())
		}
	})

	t.Run("a rejected table", func(t *testing.T) {
		requests := e.load()
		before, _ := e.config()
		bad := one("bad")
		// Valid by the rules that the protos state, but not for Envoy.
		bad.Clusters[0].LbPolicy = clusterv3.Cluster_CLUSTER_PROVIDED
		set(p, bad)
		var reason string
		e.until("the rejection", func() bool {
			reason = p.Status()[0].Streams[0].Types[0].Reason
			return reason != ""
		})
		t.Logf("Envoy says: %s", reason)
		if version, clusters := e.config(); version != before || !slices.Equal(clusters, []string{"restarted"}) {
			t.Errorf("in use are routes %s and clusters %v", version, clusters)
		}
		set(p, one("good again"))
		e.until("the next table", func() bool {
			_, clusters := e.config()
			return slices.Equal(clusters, []string{"good again"})
		})
		t.Logf("%d requests, rejected %d", requests(), e.stat("cluster_manager.cds.update_rejected"))
		if n := e.stat("cluster_manager.cds.update_rejected"); n != 1 {
			t.Errorf("rejected %d times", n)
		}
	})
	stop()
}
