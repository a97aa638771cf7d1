package snapshot

import (
	"fmt"
	"sync"
	"time"

	cachev3 "github.com/envoyproxy/go-control-plane/pkg/cache/v3"
	serverv3 "github.com/envoyproxy/go-control-plane/pkg/server/v3"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"
	"google.golang.org/protobuf/types/known/structpb"
)

// grace is how long a phase waits for an Envoy that neither accepts nor rejects what it was sent.
const grace = 5 * time.Second

// Publisher gives every node's Envoys their resources, each stream in the order make, switch, break:
//
//  1. clusters and endpoints are added, nothing is taken away, routes stay as they are;
//  2. once the Envoy accepted them, the routes follow, and after the first routes ready=100, which is never withdrawn;
//  3. once it accepted those, what no route needs any more is removed.
//
// The order is kept for each stream by itself, from what that Envoy has accepted or said that it already has. So it
// also holds for an Envoy that comes from another xds-server, or from this one before its restart, with resources that
// this Publisher never saw: removal needs a name only. A rejected resource holds its stream in its phase, with the last
// good resources in use, until the table changes. A node without a table is told nothing.
type Publisher struct {
	log     *zap.Logger
	metrics *metrics
	grace   time.Duration

	// setting is held while a table is changed. Checking a large one takes a while, in which streams go on.
	setting sync.Mutex
	// mu guards everything below, and all nodes and streams.
	mu      sync.Mutex
	nodes   map[string]*node
	streams map[streamKey]*stream
	// requests remembers whose a request is between the server's callback and the watch it makes of it.
	requests map[any]*stream
	// refused are the versions of Envoys that are too old, by node.
	refused map[string]string
	onNode  func(string, *structpb.Struct)
}

// node is what is known of one node.id.
type node struct {
	id    string
	table *table
	// ready says that some Envoy of the node had its routes once.
	ready bool
	// changed is when the table changed last; zero once every connected Envoy had accepted all of it.
	changed time.Time
	streams map[streamKey]*stream
}

// NewPublisher returns a Publisher that knows no nodes.
func NewPublisher(log *zap.Logger, reg prometheus.Registerer) *Publisher {
	return &Publisher{
		log:      log,
		metrics:  newMetrics(reg),
		grace:    grace,
		nodes:    map[string]*node{},
		streams:  map[streamKey]*stream{},
		requests: map[any]*stream{},
		refused:  map[string]string{},
	}
}

// Set makes r the node's table. An invalid one is refused as a whole, and the last good one kept.
func (p *Publisher) Set(nodeID string, r Resources) error {
	p.setting.Lock()
	defer p.setting.Unlock()
	last := p.table(nodeID)
	next, err := newTable(r, last)
	if err != nil {
		return fmt.Errorf("refusing the table of node %q, its last good one stays: %w", nodeID, err)
	}
	if last != nil && last.versions == next.versions {
		return nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	n := p.node(nodeID)
	n.table, n.changed = next, time.Now()
	for _, s := range n.streams {
		p.begin(s)
		p.flush(s)
	}
	return nil
}

func (p *Publisher) table(nodeID string) *table {
	p.mu.Lock()
	defer p.mu.Unlock()
	if n := p.nodes[nodeID]; n != nil {
		return n.table
	}
	return nil
}

// Remove forgets the node's table. Its Envoys keep what they have.
func (p *Publisher) Remove(nodeID string) {
	p.setting.Lock()
	defer p.setting.Unlock()
	p.mu.Lock()
	defer p.mu.Unlock()
	if n := p.nodes[nodeID]; n != nil {
		n.table = nil
		p.forget(n)
	}
}

// OnNode sets the function that is called whenever a stream names its node, before the stream is answered. It may call
// Set. It must be set before the first stream.
func (p *Publisher) OnNode(f func(node string, metadata *structpb.Struct)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.onNode = f
}

// Cache is what go-control-plane's server reads from.
func (p *Publisher) Cache() cachev3.Cache { return (*streamCache)(p) }

// Callbacks is how go-control-plane's server tells what happens on its streams. A server needs both.
func (p *Publisher) Callbacks() serverv3.Callbacks { return (*callbacks)(p) }

// node returns the node of that name, made if need be.
func (p *Publisher) node(id string) *node {
	n := p.nodes[id]
	if n == nil {
		n = &node{id: id, streams: map[streamKey]*stream{}}
		p.nodes[id] = n
	}
	return n
}

// forget drops a node of which nothing is left.
func (p *Publisher) forget(n *node) {
	if n.table == nil && len(n.streams) == 0 {
		delete(p.nodes, n.id)
	}
}
