// Package discovery reads what each kube-apiserver serves by itself.
package discovery

import (
	"time"

	apidiscoveryv2 "k8s.io/api/apidiscovery/v2"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"xds-server/pkg/peers"
)

// View is what one kube-apiserver serves by itself, read from its aggregated discovery with profile=nopeer. It is a
// value: nobody changes it once it was made.
type View struct {
	// Groups holds the core group (named "") first, then the others in the server's own order.
	Groups []apidiscoveryv2.APIGroupDiscovery
	// Partial has the versions of which the server lists something that was left out of Groups: documents made of it would
	// call that gone. Without a version it is a group with more versions, without both there are more groups.
	Partial map[schema.GroupVersion]bool
}

// Observation is what is known of one server at a moment.
type Observation struct {
	Server peers.Server
	// Ready says that the server's /readyz answered ok at the last poll.
	Ready bool
	// View is the last complete view; nil while the server was never read, and once it is Expired.
	View *View
	// Documents are the last that were read of the server's other documents; nil until then, and like the view once it
	// is Expired.
	Documents *Documents
	// ETags are those of the server's own documents as JSON, by path: /api and /apis (aggregated, v2, profile=nopeer),
	// /openapi/v2 and /openapi/v3. They belong to the View and Documents above.
	ETags map[string]string
	// Read is when the server last confirmed a view; zero if it never did.
	Read time.Time
	// Expired says that the server was not read for the time of a hold: nothing is expected of it any more. A server that
	// has no View and is not Expired may serve anything.
	Expired bool
	// Gone says that the source no longer lists the server: its last view still counts until its hold ends.
	Gone bool
}
