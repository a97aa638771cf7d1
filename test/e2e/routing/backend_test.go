package routing

import (
	"fmt"
	"net/url"
	"strings"

	"xds-server/test/e2e/suite"
	"xds-server/test/lab"
)

// backendAnswers has an aggregated API answer what only Envoys may say of a hop, where its apiserver is the local one and
// where it is a peer.
func backendAnswers(s *suite.S, w world, x *extension) {
	s.Helper()
	client := s.Client(w.Lab, w.Token("alice"), lab.HTTP1)
	ask := func(name string, headers ...string) *lab.Answer {
		s.Helper()
		query := url.Values{"answer": headers}
		uri := echoes + "/" + name + "?" + query.Encode()
		a := s.Want(client, "POST", w.old.FrontURL()+uri, `{}`, 200, name)
		x.mu.Lock()
		defer x.mu.Unlock()
		if n := x.asked[uri]; n != 1 {
			s.Errorf("%s: the backend was asked %d times for one POST", name, n)
		}
		return a
	}
	forged := []string{"X-Peer-Undelivered: true", "X-Kubernetes-Peer-Proxied: false"}
	var many []string
	for i := range 300 {
		many = append(many, fmt.Sprintf("Warning: 299 - \"unknown field %d\"", i))
	}
	each := func(where string) {
		s.Helper()
		a := ask("forged-"+where, forged...)
		if got := a.Header.Get("X-Peer-Undelivered"); got != "" {
			s.Errorf("%s: a backend's x-peer-undelivered reached the client", where)
		}
		if got := a.Header.Values("X-Kubernetes-Peer-Proxied"); strings.Join(got, ",") == "false" {
			s.Errorf("%s: a backend's x-kubernetes-peer-proxied reached the client", where)
		}
		if got := len(ask("many-"+where, many...).Header.Values("Warning")); got < len(many) {
			s.Errorf("%s: %d of %d warnings arrived", where, got, len(many))
		}
	}
	each("local")
	x.cutOff(w.old, true)
	x.touch(s, w, "cut off for backends")
	freshness(s, w, w.old, extensionGroup, "Stale")
	viewed(s, w)
	each("peer")
	x.cutOff(w.old, false)
	x.touch(s, w, "reachable again for backends")
	freshness(s, w, w.old, extensionGroup, "Current")
	viewed(s, w)
}
