package snapshot

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	serverv3 "github.com/envoyproxy/go-control-plane/pkg/server/v3"
	"go.uber.org/zap"
	rpcstatus "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// callbacks is the Publisher as go-control-plane's server calls it, on each stream's own goroutine. What a request says
// is noted here; it is answered when the server makes a watch of it right afterwards.
type callbacks Publisher

var _ serverv3.Callbacks = (*callbacks)(nil)

// message is what both protocols' requests say.
type message struct {
	request any
	node    *corev3.Node
	typeURL string
	nonce   string
	failure *rpcstatus.Status
	// had are the versions that the client had before this stream, hadVersion its version as a whole (state of the world).
	had        map[string]string
	hadVersion string
	// subscribed and unsubscribed are what the request changes (delta).
	subscribed, unsubscribed []string
}

func (c *callbacks) OnDeltaStreamOpen(_ context.Context, id int64, typeURL string) error {
	return c.opened(streamKey{id: id}, typeURL)
}

func (c *callbacks) OnStreamOpen(_ context.Context, id int64, typeURL string) error {
	return c.opened(streamKey{sotw: true, id: id}, typeURL)
}

func (c *callbacks) OnDeltaStreamClosed(id int64, _ *corev3.Node) { c.closed(streamKey{id: id}) }

func (c *callbacks) OnStreamClosed(id int64, _ *corev3.Node) { c.closed(streamKey{sotw: true, id: id}) }

func (c *callbacks) OnStreamDeltaRequest(id int64, req *discoveryv3.DeltaDiscoveryRequest) error {
	return c.asked(streamKey{id: id}, message{
		request: req, node: req.GetNode(), typeURL: req.GetTypeUrl(), nonce: req.GetResponseNonce(), failure: req.GetErrorDetail(),
		had: req.GetInitialResourceVersions(), subscribed: req.GetResourceNamesSubscribe(), unsubscribed: req.GetResourceNamesUnsubscribe(),
	})
}

func (c *callbacks) OnStreamRequest(id int64, req *discoveryv3.DiscoveryRequest) error {
	return c.asked(streamKey{sotw: true, id: id}, message{
		request: req, node: req.GetNode(), typeURL: req.GetTypeUrl(), nonce: req.GetResponseNonce(), failure: req.GetErrorDetail(),
		hadVersion: req.GetVersionInfo(),
	})
}

func (c *callbacks) OnStreamDeltaResponse(id int64, _ *discoveryv3.DeltaDiscoveryRequest, resp *discoveryv3.DeltaDiscoveryResponse) {
	c.numbered(streamKey{id: id}, resp.GetTypeUrl(), resp.GetNonce(), resp)
}

func (c *callbacks) OnStreamResponse(_ context.Context, id int64, _ *discoveryv3.DiscoveryRequest, resp *discoveryv3.DiscoveryResponse) {
	c.numbered(streamKey{sotw: true, id: id}, resp.GetTypeUrl(), resp.GetNonce(), resp)
}

func (c *callbacks) OnFetchRequest(context.Context, *discoveryv3.DiscoveryRequest) error { return nil }

func (c *callbacks) OnFetchResponse(*discoveryv3.DiscoveryRequest, *discoveryv3.DiscoveryResponse) {}

func (c *callbacks) opened(key streamKey, typeURL string) error {
	p := (*Publisher)(c)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.streams[key] = &stream{key: key, typeURL: typeURL}
	p.metrics.streams.Inc()
	return nil
}

func (c *callbacks) closed(key streamKey) {
	p := (*Publisher)(c)
	p.mu.Lock()
	defer p.mu.Unlock()
	s := p.streams[key]
	if s == nil {
		return
	}
	delete(p.streams, key)
	p.metrics.streams.Dec()
	if s.timer != nil {
		s.timer.Stop()
		s.timer = nil
	}
	delete(p.requests, s.request)
	if s.node == nil {
		return
	}
	delete(s.node.streams, key)
	if len(s.node.streams) == 0 {
		p.log.Info("Envoy disconnected", zap.String("node", s.node.id))
	}
	p.forget(s.node)
}

// asked notes a request. The first one of a stream names the node.
func (c *callbacks) asked(key streamKey, m message) error {
	p := (*Publisher)(c)
	if err := p.name(key, m.node); err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	s := p.streams[key]
	if m.typeURL == "" {
		m.typeURL = s.typeURL
	}
	k, served := kindOf(m.typeURL)
	if !served {
		p.log.Debug("not served", zap.String("node", s.node.id), zap.String("type", m.typeURL))
		return nil
	}
	delete(p.requests, s.request) // the server ignored it
	s.request = m.request
	p.requests[m.request] = s
	st := &s.types[k]
	if !st.subscribed {
		p.subscribe(s, k, m)
	} else {
		for _, name := range m.subscribed {
			delete(st.held, name)
			st.again[name] = true
		}
	}
	for _, name := range m.unsubscribed {
		delete(st.held, name)
		delete(st.again, name)
	}
	a := st.nonces[m.nonce]
	if a == nil {
		return nil // a change of subscription, or about an answer that is none of this stream's
	}
	delete(st.nonces, m.nonce)
	if m.failure != nil {
		p.reject(s, k, a, m.failure.GetMessage())
		return nil
	}
	st.accept(a)
	if k == routes && st.held[RouteName] != "" {
		s.ready, s.node.ready = true, true
	}
	return nil
}

// name notes the node of a stream, and tells who wants to know.
func (p *Publisher) name(key streamKey, n *corev3.Node) error {
	p.mu.Lock()
	s := p.streams[key]
	if s.node != nil {
		p.mu.Unlock()
		return nil
	}
	if n.GetId() == "" {
		p.mu.Unlock()
		return status.Error(codes.InvalidArgument, "the first request of a stream must say node.id")
	}
	if err := p.refuseOld(n); err != nil {
		p.mu.Unlock()
		return err
	}
	s.node = p.node(n.GetId())
	s.node.streams[key] = s
	p.begin(s)
	onNode := p.onNode
	p.mu.Unlock()

	v := n.GetUserAgentBuildVersion().GetVersion()
	p.log.Info("Envoy connected", zap.String("node", n.GetId()), zap.Bool("delta", !key.sotw), zap.String("agent", n.GetUserAgentName()),
		zap.Uint32s("version", []uint32{v.GetMajorNumber(), v.GetMinorNumber(), v.GetPatch()}))
	if onNode != nil {
		onNode(n.GetId(), n.GetMetadata())
	}
	return nil
}

// The oldest Envoy whose security and whose bootstrap are known to be right.
const oldestMajor, oldestMinor = 1, 40

// refuseOld is an error for an Envoy that is too old. It keeps what it has, which is its fallback chain if it just
// started, and says the error in its own log at every attempt; here it is said once. Clients of other names, such as
// grpcurl, have no version.
func (p *Publisher) refuseOld(n *corev3.Node) error {
	v := n.GetUserAgentBuildVersion().GetVersion()
	if n.GetUserAgentName() != "envoy" || v == nil || v.GetMajorNumber() > oldestMajor ||
		v.GetMajorNumber() == oldestMajor && v.GetMinorNumber() >= oldestMinor {
		delete(p.refused, n.GetId())
		return nil
	}
	version := fmt.Sprintf("%d.%d.%d", v.GetMajorNumber(), v.GetMinorNumber(), v.GetPatch())
	text := fmt.Sprintf("Envoy %s of node %q is too old: xds-server needs %d.%d or newer", version, n.GetId(), oldestMajor, oldestMinor)
	if p.refused[n.GetId()] != version {
		p.refused[n.GetId()] = version
		p.log.Error(text+"; it is refused until it is updated", zap.String("node", n.GetId()), zap.String("version", version))
	}
	return status.Error(codes.FailedPrecondition, text)
}

// subscribe notes the first request of a type, and what the client brings with it.
func (p *Publisher) subscribe(s *stream, k kind, m message) {
	st := &s.types[k]
	st.subscribed, st.nonces, st.held, st.again = true, map[string]*answer{}, map[string]string{}, map[string]bool{}
	maps.Copy(st.held, m.had)
	switch k {
	case clusters:
		p.begin(s) // patience starts when there is something to be patient about
	case routes:
		s.ready = s.ready || st.held[RouteName] != "" || m.hadVersion != ""
	case runtimes:
		version := st.held[RuntimeName]
		s.ready = s.ready || version != "" && version != readyOff[RuntimeName].version ||
			m.hadVersion != "" && m.hadVersion != setVersion(readyOff)
	}
	s.node.ready = s.node.ready || s.ready
}

// reject notes that the client refused an answer.
func (p *Publisher) reject(s *stream, k kind, a *answer, reason string) {
	st := &s.types[k]
	st.rejected, st.rejectedVersion = a.versions, a.version
	st.reason, st.rejectAt = reason, time.Now()
	st.sent = maps.Clone(st.good)
	p.metrics.nacks.WithLabelValues(kindName[k]).Inc()
	p.log.Error("Envoy rejected resources, its last good ones stay in use", zap.String("node", s.node.id),
		zap.String("type", kindName[k]), zap.Strings("resources", slices.Sorted(maps.Keys(a.versions))),
		zap.Strings("removed", a.removed), zap.String("version", a.version), zap.String("reason", reason))
}

// numbered notes the nonce of an answer that goes out now.
func (c *callbacks) numbered(key streamKey, typeURL, nonce string, resp any) {
	p := (*Publisher)(c)
	p.mu.Lock()
	defer p.mu.Unlock()
	s := p.streams[key]
	k, served := kindOf(typeURL)
	if s == nil || !served {
		return
	}
	st := &s.types[k]
	if a := st.pushed; a != nil && a.response == resp {
		st.pushed = nil
		st.nonces[nonce] = a
		st.sentVersion = a.version
		if a.sent != nil {
			st.sent = maps.Clone(a.sent)
		}
	}
}
