// Package discovery reads what each kube-apiserver serves by itself.
package discovery

import (
	"time"

	apidiscoveryv2 "k8s.io/api/apidiscovery/v2"

	"xds-server/pkg/peers"
)

// View is what one kube-apiserver serves by itself, read from its aggregated discovery with profile=nopeer. It is a
// value: nobody changes it once it was made.
type View struct {
	// Groups holds the core group (named "") first, then the others in the server's own order.
	Groups []apidiscoveryv2.APIGroupDiscovery
}

// Observation is what is known of one server at a moment.
type Observation struct {
	Server peers.Server
	// Ready says that the server's /readyz answered ok at the last poll.
	Ready bool
	// View is the last complete view; nil while the server was never read.
	View *View
	// Read is when View was last confirmed by the server.
	Read time.Time
	// Gone says that the source no longer lists the server: its last view still counts until its hold ends.
	Gone bool
}
