package extproc

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Results of requests for documents, also the values of the metric's label.
const (
	resultMerged      = "merged"
	resultPartial     = "partial"      // merged, while some server was never read
	resultNotModified = "not_modified" // the client has the merged document
	resultLocal       = "local"        // the local server's own
	resultAbsent      = "absent"       // the local server's 404
	resultRefused     = "refused"      // the local server's refusal or error
	resultUnavailable = "unavailable"  // 503
)

var results = []string{resultMerged, resultPartial, resultNotModified, resultLocal, resultAbsent, resultRefused, resultUnavailable}

type metrics struct {
	requests *prometheus.CounterVec
	duration prometheus.Histogram
}

func newMetrics(reg prometheus.Registerer) *metrics {
	m := &metrics{
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "xds_server_document_requests_total",
			Help: "Requests for discovery documents that came while servers differed, by what was given.",
		}, []string{"result"}),
		duration: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name:    "xds_server_document_request_duration_seconds",
			Help:    "Time from a request for a discovery document to its answer, the local server's part included.",
			Buckets: prometheus.ExponentialBuckets(0.0005, 2.5, 10),
		}),
	}
	for _, r := range results {
		m.requests.WithLabelValues(r)
	}
	reg.MustRegister(m.requests, m.duration)
	return m
}

func (m *metrics) count(result string)  { m.requests.WithLabelValues(result).Inc() }
func (m *metrics) took(d time.Duration) { m.duration.Observe(d.Seconds()) }
