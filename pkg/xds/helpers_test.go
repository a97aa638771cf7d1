package xds

import (
	"testing"

	"github.com/prometheus/client_golang/prometheus"
)

// nacks reads one counter back.
func nacks(t *testing.T, l *bench, typeName string) prometheus.Collector {
	t.Helper()
	families, err := l.metrics.Gather()
	if err != nil {
		t.Fatal(err)
	}
	g := prometheus.NewGauge(prometheus.GaugeOpts{Name: "x"})
	for _, f := range families {
		if f.GetName() != "xds_server_nacks_total" {
			continue
		}
		for _, m := range f.GetMetric() {
			if m.GetLabel()[0].GetValue() == typeName {
				g.Set(m.GetCounter().GetValue())
			}
		}
	}
	return g
}
