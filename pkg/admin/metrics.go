package admin

import (
	"runtime"
	"runtime/debug"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
)

// NewRegistry returns a registry that has the metrics of the process and of the Go runtime, and says which version of
// the program this is.
func NewRegistry(version string) *prometheus.Registry {
	info := prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "xds_server_build_info",
		Help: "Always 1. The labels say what was built, from what, and by which Go.",
		ConstLabels: prometheus.Labels{
			"version": version, "revision": revision(), "goversion": runtime.Version(),
		},
	})
	info.Set(1)
	reg := prometheus.NewRegistry()
	reg.MustRegister(info, collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return reg
}

// revision is the commit that go build noted.
func revision() string {
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, s := range info.Settings {
			if s.Key == "vcs.revision" {
				return s.Value
			}
		}
	}
	return "unknown"
}
