package discovery

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// metrics are labelled by the servers' names, of which there are never more than peers.MaxServers and those that are
// gone but held.
type metrics struct {
	polls    *prometheus.CounterVec
	duration prometheus.Histogram
	ready    *prometheus.GaugeVec
	read     *prometheus.GaugeVec
	dropped  *prometheus.CounterVec

	documents *prometheus.CounterVec
	confirmed *prometheus.GaugeVec
	bytes     *prometheus.GaugeVec
}

func newMetrics(reg prometheus.Registerer) *metrics {
	m := &metrics{
		polls: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "xds_server_polls_total",
			Help: "Reads of a kube-apiserver's readiness and discovery, by result.",
		}, []string{"server", "result"}),
		duration: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name:    "xds_server_poll_duration_seconds",
			Help:    "Time that one read of a kube-apiserver took.",
			Buckets: prometheus.ExponentialBuckets(0.001, 2.5, 10),
		}),
		ready: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "xds_server_apiserver_ready",
			Help: "Whether a kube-apiserver's /readyz was ok when it was last asked (1 or 0).",
		}, []string{"server"}),
		read: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "xds_server_view_confirmed_timestamp_seconds",
			Help: "When a kube-apiserver last confirmed its view; its age is time() less this.",
		}, []string{"server"}),
		dropped: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "xds_server_invalid_names_total",
			Help: "Entries of a kube-apiserver's discovery that were left out, by reason.",
		}, []string{"server", "reason"}),
		documents: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "xds_server_document_polls_total",
			Help: "Reads of a kube-apiserver's other documents (legacy discovery and OpenAPI), by result.",
		}, []string{"server", "result"}),
		confirmed: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "xds_server_documents_confirmed_timestamp_seconds",
			Help: "When a kube-apiserver last confirmed its other documents; their age is time() less this.",
		}, []string{"server"}),
		bytes: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "xds_server_openapi_bytes",
			Help: "Size of the OpenAPI documents that are kept of a kube-apiserver; equal ones of several are counted for each.",
		}, []string{"server"}),
	}
	reg.MustRegister(m.polls, m.duration, m.ready, m.read, m.dropped, m.documents, m.confirmed, m.bytes)
	return m
}

func (m *metrics) took(d time.Duration) { m.duration.Observe(d.Seconds()) }

func (m *metrics) observe(server string, o Observation, r reading) {
	for _, result := range results {
		m.polls.WithLabelValues(server, result) // at 0 from the start, so that a first failure is an increase
	}
	m.polls.WithLabelValues(server, r.result).Inc()
	ready := 0.0
	if o.Ready {
		ready = 1
	}
	m.ready.WithLabelValues(server).Set(ready)
	if !o.Read.IsZero() {
		m.read.WithLabelValues(server).Set(float64(o.Read.UnixMilli()) / 1000)
	}
	m.left(server, r.dropped)
}

func (m *metrics) left(server string, dropped map[string]int) {
	for _, reason := range []string{reasonInvalid, reasonDuplicate, reasonOversized} {
		m.dropped.WithLabelValues(server, reason).Add(float64(dropped[reason]))
	}
}

func (m *metrics) observeDocuments(server string, r documentsReading, now time.Time) {
	for _, result := range documentsResults {
		m.documents.WithLabelValues(server, result) // at 0 from the start, as above
	}
	m.documents.WithLabelValues(server, r.result).Inc()
	if r.documents != nil {
		m.confirmed.WithLabelValues(server).Set(float64(now.UnixMilli()) / 1000)
	}
	m.left(server, r.dropped)
}

func (m *metrics) forget(server string) {
	for _, v := range []interface {
		DeletePartialMatch(prometheus.Labels) int
	}{m.polls, m.ready, m.read, m.dropped, m.documents, m.confirmed, m.bytes} {
		v.DeletePartialMatch(prometheus.Labels{"server": server})
	}
}
