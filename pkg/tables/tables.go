// Package tables keeps every node's route table, and the cluster's documents, up to date with what is known of the
// servers, and publishes them.
package tables

import (
	"maps"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"
	"google.golang.org/protobuf/types/known/structpb"

	"xds-server/pkg/discovery"
	"xds-server/pkg/documents"
	"xds-server/pkg/peers"
	"xds-server/pkg/routing"
	"xds-server/pkg/snapshot"
)

// Tables holds what a table is made of: the observations, what the identity leases tell, and where each node's Envoy has
// its SDS files. Whenever one changes, the tables that it touches are compiled again.
type Tables struct {
	publisher *snapshot.Publisher
	hold      time.Duration
	log       *zap.Logger
	// complete is nil once every server was tried: each gets its chance to be read before the first table.
	complete func() error

	mu           sync.Mutex
	observations []discovery.Observation
	documents    *documents.Set
	madeOf       documentsOf
	merging      prometheus.Histogram
	onDocuments  func(set *documents.Set, complete bool)
	secretsDirs  map[string]string // by node
	nodes        []string          // that were compiled last
	unlisted     unlisted
}

// unlisted is how many more servers have an identity lease than are listed, and since when a lease tells of one: for the
// time of a hold they may serve anything. A listed server that is forgotten leaves its lease behind, which says nothing new.
type unlisted struct {
	leases, servers int
	since           time.Time
	end             *time.Timer
}

// New makes the tables of a publisher. complete is asked before every compilation, and must stay nil once it was.
func New(p *snapshot.Publisher, complete func() error, hold time.Duration, log *zap.Logger, reg prometheus.Registerer) *Tables {
	t := &Tables{publisher: p, complete: complete, hold: hold, log: log, secretsDirs: map[string]string{}}
	t.merging = prometheus.NewHistogram(prometheus.HistogramOpts{
		Name:    "xds_server_documents_compile_seconds",
		Help:    "Time to merge all servers' discovery after a change.",
		Buckets: prometheus.ExponentialBuckets(0.001, 2.5, 10),
	})
	reg.MustRegister(t.merging)
	return t
}

// documentsOf is what documents are made of: while it is the same, so are they.
type documentsOf struct {
	observations []discovery.Observation
	complete     bool
}

func (d documentsOf) equal(o documentsOf) bool {
	return d.complete == o.complete && slices.EqualFunc(d.observations, o.observations, func(a, b discovery.Observation) bool {
		return a.Server.Name == b.Server.Name && a.Ready == b.Ready && a.Gone == b.Gone &&
			a.View == b.View && a.Documents == b.Documents && maps.Equal(a.ETags, b.ETags)
	})
}

// OnDocuments has f called with the documents whenever they are new, before any table counts on them. complete is false
// while some server that exists was never read. It must be set before anything is observed.
func (t *Tables) OnDocuments(f func(set *documents.Set, complete bool)) { t.onDocuments = f }

// Observe takes what is known of the servers now.
func (t *Tables) Observe(observations []discovery.Observation) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.observations = observations
	t.compileAll()
}

// Evidence takes the hosts whose kube-apiserver has an identity lease. A lease names a host, which need not be the
// server's name here, so only their number is compared.
func (t *Tables) Evidence(hosts []string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if more := len(hosts) - len(t.observations); len(hosts) > t.unlisted.leases && more > 0 {
		t.unlisted.since = time.Now()
		t.log.Warn("identity leases tell of kube-apiservers that are not listed", zap.Int("leases", len(hosts)), zap.Int("listed", len(t.observations)))
	}
	t.unlisted.leases = len(hosts)
	t.compileAll()
}

// Connected takes what an Envoy says of itself.
func (t *Tables) Connected(node string, metadata *structpb.Struct) {
	dir := metadata.GetFields()["secrets_dir"].GetStringValue()
	t.mu.Lock()
	defer t.mu.Unlock()
	// Its server may be listed later, so what it says is kept; but not without end.
	known := slices.ContainsFunc(t.observations, func(o discovery.Observation) bool { return o.Server.Name == node })
	if !known && t.complete() == nil {
		t.log.Warn("an Envoy is of a node that is not among the servers, so it gets no routes", zap.String("node", node))
	}
	if !known && len(t.secretsDirs) >= 2*peers.MaxServers {
		return
	}
	// A client that does not say, such as grpcurl, changes nothing.
	if dir == "" || dir == t.secretsDirs[node] {
		return
	}
	if !filepath.IsAbs(dir) || filepath.Clean(dir) != dir {
		t.log.Warn("an Envoy names a directory of SDS files that is not an absolute path", zap.String("node", node), zap.String("secrets_dir", dir))
		return
	}
	t.secretsDirs[node] = dir
	if t.complete() == nil {
		t.compile(node, t.views(), t.peers())
	}
}

func (t *Tables) compileAll() {
	if t.complete() != nil {
		return
	}
	views, known := t.views(), t.peers()
	t.compileDocuments(complete(views))
	var nodes []string
	for _, o := range t.observations {
		t.compile(o.Server.Name, views, known)
		nodes = append(nodes, o.Server.Name)
	}
	for _, node := range t.nodes {
		if _, still := known[node]; !still {
			t.publisher.Remove(node)
			delete(t.secretsDirs, node)
		}
	}
	t.nodes = nodes
}

// complete says whether every server that exists was read.
func complete(views map[string]*discovery.View) bool {
	for _, v := range views {
		if v == nil {
			return false
		}
	}
	return true
}

func (t *Tables) compileDocuments(complete bool) {
	of := documentsOf{t.observations, complete}
	if t.documents != nil && of.equal(t.madeOf) {
		return
	}
	begun := time.Now()
	t.documents, t.madeOf = documents.Compile(t.observations, complete), of
	t.merging.Observe(time.Since(begun).Seconds())
	if t.onDocuments != nil {
		t.onDocuments(t.documents, complete)
	}
}

// views are the servers' views by name; nil for a server that exists but is unknown.
func (t *Tables) views() map[string]*discovery.View {
	views := map[string]*discovery.View{}
	for _, o := range t.observations {
		if !o.Expired {
			views[o.Server.Name] = o.View
		}
	}
	if t.unlistedCount() {
		views[""] = nil
	}
	return views
}

// unlistedCount says whether leases tell of servers that are not listed, and has all tables compiled again when they
// count no more.
func (t *Tables) unlistedCount() bool {
	u := &t.unlisted
	more := u.leases - len(t.observations)
	if more != u.servers {
		if u.end != nil {
			u.end.Stop()
		}
		if more > 0 {
			u.end = time.AfterFunc(time.Until(u.since.Add(t.hold)), func() {
				t.mu.Lock()
				defer t.mu.Unlock()
				t.compileAll()
			})
		}
		u.servers = more
	}
	return more > 0 && time.Since(u.since) < t.hold
}

func (t *Tables) peers() map[string]snapshot.Peer {
	out := map[string]snapshot.Peer{}
	for _, o := range t.observations {
		out[o.Server.Name] = snapshot.Peer{Server: o.Server, Ready: o.Ready}
	}
	return out
}

// compile publishes one node's table. Nobody knows what may be sent to a server that was never read: its Envoy keeps the
// routes that it has, or its fallback chain.
func (t *Tables) compile(node string, views map[string]*discovery.View, known map[string]snapshot.Peer) {
	if i := slices.IndexFunc(t.observations, func(o discovery.Observation) bool { return o.Server.Name == node }); i < 0 || t.observations[i].Read.IsZero() {
		return
	}
	dir := t.secretsDirs[node]
	if dir == "" {
		dir = snapshot.DefaultSecretsDir
	}
	table := routing.Compile(node, views)
	table.Merged = t.documents.Differ()
	resources, err := snapshot.Compile(table, known, dir)
	if err == nil {
		err = t.publisher.Set(node, resources)
	}
	if err != nil {
		t.log.Error("a node's table can't be published, its last one stays", zap.String("node", node), zap.Error(err))
	}
}
