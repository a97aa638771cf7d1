package snapshot

import (
	"cmp"
	"maps"
	"slices"
	"time"
)

// NodeStatus is how far a node's Envoys are with its table.
type NodeStatus struct {
	Node string `json:"node"`
	// Table says whether the node has one.
	Table bool `json:"table"`
	// Ready says that an Envoy of the node has had routes.
	Ready bool `json:"ready"`
	// Streams are the open xDS streams that named this node: none while its Envoy is not connected.
	Streams []StreamStatus `json:"streams"`
}

// StreamStatus is one open stream.
type StreamStatus struct {
	// Protocol is delta or sotw.
	Protocol string `json:"protocol"`
	// Phase is adding, switching, removing or, with nothing left to do, synced.
	Phase string       `json:"phase"`
	Types []TypeStatus `json:"types"`
}

// TypeStatus is one type that the stream subscribed to.
type TypeStatus struct {
	TypeURL string `json:"typeUrl"`
	// Version is the table's, Sent and Accepted are those of the last answers sent and accepted on this stream.
	Version  string `json:"version"`
	Sent     string `json:"sent,omitempty"`
	Accepted string `json:"accepted,omitempty"`
	// Reason is Envoy's own, while it rejects something.
	Reason    string           `json:"reason,omitempty"`
	Rejected  time.Time        `json:"rejectedAt,omitzero"`
	Updated   time.Time        `json:"acceptedAt,omitzero"`
	Resources []ResourceStatus `json:"resources,omitempty"`
}

// ResourceStatus is one resource of the table, or one that the Envoy has besides.
type ResourceStatus struct {
	Name string `json:"name"`
	// Version is the table's: empty if the resource is to go.
	Version string `json:"version,omitempty"`
	// Accepted is what the Envoy has, Rejected what it refused.
	Accepted string `json:"accepted,omitempty"`
	Rejected string `json:"rejected,omitempty"`
}

// Status tells of every node that has a table or an open stream, sorted by name.
func (p *Publisher) Status() []NodeStatus {
	p.mu.Lock()
	defer p.mu.Unlock()
	var out []NodeStatus
	for _, id := range slices.Sorted(maps.Keys(p.nodes)) {
		n := p.nodes[id]
		ns := NodeStatus{Node: id, Table: n.table != nil, Ready: n.ready, Streams: []StreamStatus{}}
		keys := slices.SortedFunc(maps.Keys(n.streams), func(a, b streamKey) int {
			return cmp.Or(cmp.Compare(a.id, b.id), cmp.Compare(protocol(a), protocol(b)))
		})
		for _, key := range keys {
			ns.Streams = append(ns.Streams, n.streams[key].status(n.table))
		}
		out = append(out, ns)
	}
	return out
}

func protocol(k streamKey) string {
	if k.sotw {
		return "sotw"
	}
	return "delta"
}

func (s *stream) status(t *table) StreamStatus {
	out := StreamStatus{Protocol: protocol(s.key), Phase: phaseName[s.phase], Types: []TypeStatus{}}
	if t == nil {
		t = &table{}
	} else if s.synced(t) {
		out.Phase = "synced"
	}
	for k := range kinds {
		st := &s.types[k]
		if !st.subscribed {
			continue
		}
		var wanted map[string]*resource
		if t.versions[k] != "" {
			wanted = s.wanted(k, t)
		}
		ts := TypeStatus{TypeURL: kindURL[k], Sent: st.sentVersion, Accepted: st.heldVersion,
			Reason: st.reason, Updated: st.heldAt}
		if st.reason != "" {
			ts.Rejected = st.rejectAt
		}
		if wanted != nil {
			ts.Version = setVersion(wanted)
		}
		names := map[string]bool{}
		for name := range wanted {
			names[name] = names[name] || st.follows(name)
		}
		for name := range st.held {
			names[name] = true
		}
		for _, name := range slices.Sorted(maps.Keys(names)) {
			if !names[name] {
				continue
			}
			r := ResourceStatus{Name: name, Accepted: st.held[name], Rejected: st.rejected[name]}
			if w := wanted[name]; w != nil {
				r.Version = w.version
			}
			ts.Resources = append(ts.Resources, r)
		}
		out.Types = append(out.Types, ts)
	}
	return out
}
