package envoy_test

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"xds-server/envoy/lua"
	"xds-server/envoy/luatest"
)

var (
	chains = flag.Int("chains", 3000, "how many random certificate chains the identity test makes")
	seed   = flag.Uint64("seed", 1, "what they are made from; 0: something else every time")
)

func startFront(tb testing.TB, b *luatest.Cluster) *luatest.Envoy {
	tb.Helper()
	return luatest.Start(tb, luatest.Config{
		Script: lua.Front(lua.Config{CAFile: b.CAFile}), CAFile: b.CAFile, CertFile: b.CertFile, KeyFile: b.KeyFile,
	})
}

// difference is what Envoy and an apiserver make of one chain, if it is not the same.
func difference(e *luatest.Envoy, b *luatest.Bundle, chain [][]byte, key *luatest.Key) (want, got luatest.Verdict, err error) {
	want = luatest.APIServer(chain, key, b.Certs()...)
	a, err := e.Ask(chain, key.Private)
	if err != nil {
		return want, got, err
	}
	got = a.Front()
	if want.Equal(got) || b.ClassOf(chain, want, got) != "" {
		return want, got, nil
	}
	return want, got, fmt.Errorf("apiserver: %v\nfront:     %v\n%s", want, got, luatest.Describe(chain))
}

func TestRandomCertificateChainsAreTheSameUserInEnvoyAsInTheAPIServer(t *testing.T) {
	b := luatest.NewBundle(t)
	e := startFront(t, b.Cluster)
	seed := *seed
	if seed == 0 {
		seed = rand.Uint64()
	}
	t.Logf("seed %d", seed)
	var next, differ atomic.Int64
	var mu sync.Mutex
	kinds := map[string]int{}
	begin := time.Now()
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for n := next.Add(1); n <= int64(*chains); n = next.Add(1) {
				r := rand.New(rand.NewPCG(seed, uint64(n)))
				data := make([]byte, 400)
				for i := range data {
					data[i] = byte(r.Uint32())
				}
				chain, key := b.Chain(luatest.ChooseFrom(data))
				want, got, err := difference(e, b, chain, key)
				mu.Lock()
				kinds[want.Kind+" → "+got.Kind]++
				mu.Unlock()
				if err != nil && differ.Add(1) <= 40 {
					t.Errorf("chain %d: %v", n, err)
				}
			}
		})
	}
	wg.Wait()
	t.Logf("%d chains, %.0f a second", *chains, float64(*chains)/time.Since(begin).Seconds())
	var lines []string
	for k, n := range kinds {
		lines = append(lines, fmt.Sprintf("%6d %s", n, k))
	}
	slices.Sort(lines)
	t.Log("\n" + strings.Join(lines, "\n"))
	if log := e.Log(); strings.Contains(log, "script log") {
		t.Errorf("the script failed:\n%.2000s", log)
	}
}

// FuzzCertificate lets Go's fuzzer choose the chain. What a handshake covers is never quite the same twice, so that making
// inputs smaller is in vain: go test -run - -fuzz FuzzCertificate -fuzzminimizetime 1x ./envoy
func FuzzCertificate(f *testing.F) {
	b := luatest.NewBundle(f)
	e := startFront(f, b.Cluster)
	f.Add([]byte{})
	for n := range uint64(20) {
		r := rand.New(rand.NewPCG(n, 1))
		data := make([]byte, 200)
		for i := range data {
			data[i] = byte(r.Uint32())
		}
		f.Add(data)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		chain, key := b.Chain(luatest.ChooseFrom(data))
		if _, _, err := difference(e, b, chain, key); err != nil {
			t.Error(err)
		}
	})
}
