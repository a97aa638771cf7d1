package main

import (
	"sync"
	"time"

	"go.uber.org/zap"
	"google.golang.org/protobuf/types/known/structpb"

	"xds-server/pkg/discovery"
	"xds-server/pkg/routing"
	"xds-server/pkg/snapshot"
)

// tables keeps every node's table up to date with what is known of the servers. It holds the two inputs of a table, the
// observations and where a node's Envoy has its SDS files, and compiles again whenever one changes.
type tables struct {
	publisher *snapshot.Publisher
	log       *zap.Logger

	mu           sync.Mutex
	complete     func() error // nil once every server was tried
	observations []discovery.Observation
	leases       []string             // hosts whose kube-apiserver has an identity lease
	secretsDirs  map[string]string    // by node
	unread       map[string]time.Time // since when a server is known that was never read
	hold         time.Duration
}

func newTables(p *snapshot.Publisher, hold time.Duration, log *zap.Logger) *tables {
	return &tables{publisher: p, hold: hold, log: log, secretsDirs: map[string]string{}, unread: map[string]time.Time{}}
}

// observe takes what is known of the servers now.
func (t *tables) observe(observations []discovery.Observation) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.observations = observations
	t.compileAll()
}

// evidence takes the hosts whose kube-apiserver has an identity lease.
func (t *tables) evidence(hosts []string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(hosts) > len(t.leases) {
		t.log.Info("identity leases tell of these kube-apiservers", zap.Strings("hosts", hosts), zap.Int("known", len(t.observations)))
	}
	t.leases = hosts
	t.compileAll()
}

func (t *tables) compileAll() {
	if t.complete() != nil {
		return // every server gets its chance to be read before the first table
	}
	for _, o := range t.observations {
		t.compile(o.Server.Name)
	}
}

// views are the servers' views by name; nil for a server that is known to exist and was never read. Such a server counts
// for the time of a hold, as one that can't be read any more does.
func (t *tables) views() map[string]*discovery.View {
	views := map[string]*discovery.View{}
	for _, o := range t.observations {
		name := o.Server.Name
		if o.View != nil {
			views[name] = o.View
			delete(t.unread, name)
		} else if t.waitedFor(name) {
			views[name] = nil
		}
	}
	// A lease names a host, which need not be the server's name here: only their number is compared.
	if missing := len(t.leases) - len(t.observations); missing > 0 && t.waitedFor("") {
		views[""] = nil
	} else if missing <= 0 {
		delete(t.unread, "")
	}
	return views
}

// waitedFor says whether an unread server still counts, and has the tables compiled again when it does no more.
func (t *tables) waitedFor(name string) bool {
	since, ok := t.unread[name]
	if !ok {
		since = time.Now()
		t.unread[name] = since
		time.AfterFunc(t.hold, func() {
			t.mu.Lock()
			defer t.mu.Unlock()
			t.compileAll()
		})
	}
	return time.Since(since) < t.hold
}

// connected takes what an Envoy says of itself.
func (t *tables) connected(node string, metadata *structpb.Struct) {
	dir := metadata.GetFields()["secrets_dir"].GetStringValue()
	t.mu.Lock()
	defer t.mu.Unlock()
	// A client that does not say, such as grpcurl, changes nothing.
	if dir == "" || dir == t.secretsDirs[node] {
		return
	}
	t.secretsDirs[node] = dir
	if t.complete() == nil {
		t.compile(node)
	}
}

// compile publishes a node's table. A node whose own server was never read gets none: its Envoy keeps the routes that
// it has, or its fallback chain, since nobody knows what may be sent to that server.
func (t *tables) compile(node string) {
	views := t.views()
	known := map[string]snapshot.Peer{}
	for _, o := range t.observations {
		known[o.Server.Name] = snapshot.Peer{Server: o.Server, Ready: o.Ready}
	}
	if views[node] == nil {
		return
	}
	dir := t.secretsDirs[node]
	if dir == "" {
		dir = snapshot.DefaultSecretsDir
	}
	resources, err := snapshot.Compile(routing.Compile(node, views), known, dir)
	if err == nil {
		err = t.publisher.Set(node, resources)
	}
	if err != nil {
		t.log.Error("a node's table can't be published, its last one stays", zap.String("node", node), zap.Error(err))
	}
}
