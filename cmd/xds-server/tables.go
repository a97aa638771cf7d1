package main

import (
	"sync"

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
	secretsDirs  map[string]string // by node
}

func newTables(p *snapshot.Publisher, log *zap.Logger) *tables {
	return &tables{publisher: p, log: log, secretsDirs: map[string]string{}}
}

// observe takes what is known of the servers now.
func (t *tables) observe(observations []discovery.Observation) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.observations = observations
	if t.complete() != nil {
		// A table made of half the servers would send requests where they would be told that the API does not exist.
		return
	}
	for _, o := range observations {
		t.compile(o.Server.Name)
	}
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
	views := map[string]*discovery.View{}
	known := map[string]snapshot.Peer{}
	for _, o := range t.observations {
		views[o.Server.Name] = o.View
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
