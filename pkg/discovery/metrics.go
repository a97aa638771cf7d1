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
	}
	reg.MustRegister(m.polls, m.duration, m.ready, m.read, m.dropped)
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
	for _, reason := range []string{reasonInvalid, reasonDuplicate} {
		m.dropped.WithLabelValues(server, reason).Add(float64(r.dropped[reason]))
	}
}

func (m *metrics) forget(server string) {
	for _, v := range []interface {
		DeletePartialMatch(prometheus.Labels) int
	}{m.polls, m.ready, m.read, m.dropped} {
		v.DeletePartialMatch(prometheus.Labels{"server": server})
	}
}
