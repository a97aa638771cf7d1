package snapshot

import "github.com/prometheus/client_golang/prometheus"

type metrics struct {
	nacks       *prometheus.CounterVec
	timeouts    prometheus.Counter
	streams     prometheus.Gauge
	convergence prometheus.Histogram
}

func newMetrics(reg prometheus.Registerer) *metrics {
	m := &metrics{
		nacks: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "xds_server_nacks_total",
			Help: "Answers that an Envoy rejected, by resource type. Its last good resources stay in use.",
		}, []string{"type"}),
		timeouts: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "xds_server_publish_timeouts_total",
			Help: "Phases of publishing that ended because an Envoy neither accepted nor rejected resources in time.",
		}),
		streams: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "xds_server_streams",
			Help: "Open xDS streams.",
		}),
		convergence: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name:    "xds_server_convergence_seconds",
			Help:    "Time from a change of a node's table until all Envoys connected for that node had accepted all of it.",
			Buckets: []float64{.005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30},
		}),
	}
	for _, name := range kindName {
		m.nacks.WithLabelValues(name) // a rate needs the zero
	}
	reg.MustRegister(m.nacks, m.timeouts, m.streams, m.convergence)
	return m
}
