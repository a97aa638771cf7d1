package envoy_test

import (
	"context"
	"net/http"
	"testing"
	"time"

	"xds-server/envoy/lua"
	"xds-server/envoy/luatest"
)

// BenchmarkRequest is what the scripts cost, on connections that live on, four at a time. The answer says who asked.
func BenchmarkRequest(b *testing.B) {
	c := luatest.NewCluster(b)
	config := lua.Config{CAFile: c.CAFile}
	leaf := c.Leaf()
	leaf.Subject = luatest.Simple(luatest.CN, "system:node:n1", luatest.O, "system:nodes").DER()
	chain := [][]byte{leaf.Sign(c.CAKey)}
	for _, bench := range []struct {
		name, script string
		chain        [][]byte
	}{
		{"no script, certificate", "", chain},
		{"front, certificate", lua.Front(config), chain},
		{"front, no certificate", lua.Front(config), nil},
		{"fallback, no certificate", lua.Fallback(config), nil},
	} {
		b.Run(bench.name, func(b *testing.B) {
			e := luatest.Start(b, luatest.Config{Script: bench.script, CAFile: c.CAFile, CertFile: c.CertFile, KeyFile: c.KeyFile})
			b.SetParallelism(2)
			b.ResetTimer()
			b.RunParallel(func(pb *testing.PB) {
				ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
				defer cancel()
				conn, err := e.Dial(ctx, bench.chain, leaf.Key.Private, 0)
				if err != nil {
					b.Error(err)
					return
				}
				defer conn.Close()
				for pb.Next() {
					a, err := conn.Do(http.MethodGet, "/api/v1/namespaces/default/pods/x/log?follow=true")
					if err != nil || a.Status != http.StatusOK {
						b.Errorf("%v %+v", err, a)
						return
					}
				}
			})
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "req/s")
		})
	}
}
