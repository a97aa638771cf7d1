package xds

import (
	"testing"
	"testing/synctest"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"google.golang.org/protobuf/types/known/structpb"
)

func TestAnEnvoyThatStartsIsReadyOnceItHasItsRoutes(t *testing.T) {
	onBench(t, func(l *bench) {
		l.set("a", table("b"))
		e := newEnvoy(t, "a")
		e.connect(l)
		e.told("runtime +peer_routing", "clusters +b", "endpoints +b", "routes +front", "runtime +peer_routing")
		if e.ready() != 100 || l.phase("a") != "synced" {
			t.Errorf("ready is %v, the phase is %s", e.ready(), l.phase("a"))
		}
		e.cancel()
	})
}

func TestClustersComeBeforeTheRoutesThatNameThemAndGoAfter(t *testing.T) {
	onBench(t, func(l *bench) {
		l.set("a", table("b", "c"))
		e := newEnvoy(t, "a")
		e.connect(l)
		e.said = nil
		l.set("a", table("c", "d"))
		e.told("clusters +d", "endpoints +d", "routes +front", "clusters -b")
		// Faster than the Envoy answers.
		for range 5 {
			l.set("a", table("e"))
			l.set("a", table("f", "g"))
			l.set("a", table("c", "f"))
		}
		e.live()
		if l.phase("a") != "synced" || len(e.has[resource.ClusterType]) != 2 {
			t.Errorf("in the end the phase is %s, and the Envoy was told %q", l.phase("a"), e.said)
		}
		e.cancel()
	})
}

func TestRoutesWaitForAClusterWhoseRemovalIsUnderWay(t *testing.T) {
	onBench(t, func(l *bench) {
		l.set("a", table("b", "c"))
		e := newEnvoy(t, "a")
		e.connect(l)
		e.said, e.late = nil, map[string]bool{"clusters -b": true}
		l.set("a", table("c"))
		e.told("routes +front", "clusters -b")
		l.set("a", table("b", "c"))
		e.told()
		time.Sleep(time.Minute) // on the bubble's clock
		e.told()
		e.arrive(2)
		e.told("clusters +b", "endpoints +b", "routes +front")
		e.cancel()
	})
}

func TestAClusterThatTheTableLostBeforeItHadEndpointsHoldsNothingUp(t *testing.T) {
	onBench(t, func(l *bench) {
		l.set("a", table("b"))
		e := newEnvoy(t, "a")
		e.connect(l)
		e.said, e.late = nil, map[string]bool{"clusters +c": true}
		l.set("a", table("b", "c"))
		e.told("clusters +c")
		l.set("a", table("b", "d"))
		// A real Envoy accepts the clusters only once they have endpoints, or 15 s later.
		e.arrive(1)
		e.told("endpoints +c")
		e.arrive(1)
		e.told("clusters +d", "endpoints +d", "routes +front", "clusters -c")
		if l.phase("a") != "synced" {
			t.Errorf("in the end the phase is %s", l.phase("a"))
		}
		e.cancel()
	})
}

func TestASubscriptionThatIsMadeAgainIsAnsweredAgain(t *testing.T) {
	onBench(t, func(l *bench) {
		l.set("a", table("b"))
		e := newEnvoy(t, "a")
		e.connect(l)
		e.said = nil
		// An Envoy that removes a cluster and gets it again may tell only the latter.
		e.send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: resource.EndpointType, ResourceNamesSubscribe: []string{"b"}})
		e.told("endpoints +b")
		e.cancel()
	})
}

func TestTheSameTableAgainSaysNothing(t *testing.T) {
	onBench(t, func(l *bench) {
		l.set("a", table("b"))
		e := newEnvoy(t, "a")
		e.connect(l)
		e.said = nil
		l.set("a", table("b"))
		e.told()
		e.cancel()
	})
}

func TestARejectedClusterLeavesTheLastGoodRoutesAloneHoweverLongItTakes(t *testing.T) {
	onBench(t, func(l *bench) {
		l.set("a", table("b"))
		e := newEnvoy(t, "a")
		e.connect(l)
		e.said = nil
		e.refuses["c"] = "Error adding/updating cluster(s) c: no good"
		l.set("a", table("c", "d"))
		// Envoy does not say what was wrong with d, which it got in the same answer: nothing.
		e.told("clusters +c +d rejected")
		time.Sleep(time.Minute) // on the bubble's clock
		e.told()
		if l.phase("a") != "adding" {
			t.Errorf("the phase is %s", l.phase("a"))
		}
		if n := testutil.ToFloat64(nacks(t, l, "cluster")); n != 1 {
			t.Errorf("%v rejections counted", n)
		}
		// A table without the bad one: what was refused only for its company comes again.
		l.set("a", table("b", "d"))
		e.told("clusters +d", "endpoints +d", "routes +front", "clusters -c")
		if l.phase("a") != "synced" {
			t.Errorf("in the end the phase is %s", l.phase("a"))
		}
		e.cancel()
	})
}

func TestRejectedRoutesKeepTheClustersOfTheLastGoodOnes(t *testing.T) {
	onBench(t, func(l *bench) {
		l.set("a", table("b"))
		e := newEnvoy(t, "a")
		e.connect(l)
		e.said = nil
		e.refuses["front"] = "bad route"
		l.set("a", table("c"))
		e.told("clusters +c", "endpoints +c", "routes +front rejected")
		time.Sleep(time.Minute)
		e.told()
		delete(e.refuses, "front")
		l.set("a", table("c", "d"))
		e.told("clusters +d", "endpoints +d", "routes +front", "clusters -b")
		e.cancel()
	})
}

func TestGoingBackToTheLastGoodTableAfterARejection(t *testing.T) {
	onBench(t, func(l *bench) {
		l.set("a", table("b"))
		e := newEnvoy(t, "a")
		e.connect(l)
		e.said = nil
		e.refuses["b"] = "no good"
		l.set("a", spoil(table("b"), 0, "once"))
		e.told("clusters +b rejected")
		delete(e.refuses, "b")
		l.set("a", table("b"))
		e.told("clusters +b")
		if l.phase("a") != "synced" {
			t.Errorf("the phase is %s", l.phase("a"))
		}
		e.cancel()
	})
}

func TestAnEnvoyThatDoesNotAnswerIsWaitedForFiveSeconds(t *testing.T) {
	onBench(t, func(l *bench) {
		l.set("a", table("b"))
		e := newEnvoy(t, "a")
		e.connect(l)
		e.said = nil
		e.silent = true
		l.set("a", table("c"))
		e.told("clusters +c")
		time.Sleep(4 * time.Second)
		e.told()
		time.Sleep(1001 * time.Millisecond)
		e.told("routes +front")
		e.cancel()
	})
}

func TestAfterARestartNothingIsSentToAnEnvoyThatHasEverything(t *testing.T) {
	onBench(t, func(l *bench) {
		l.set("a", table("b"))
		e := newEnvoy(t, "a")
		e.connect(l)
		e.cancel()
		e.said = nil

		again := newBench(t)
		e.connect(again)
		e.told() // the new server has no table yet
		again.set("a", table("b"))
		e.told()
		if again.phase("a") != "synced" {
			t.Errorf("the phase is %s", again.phase("a"))
		}
		e.cancel()
		again.stop()
	})
}

func TestAfterARestartTheOrderHoldsForWhatTheServerNeverSaw(t *testing.T) {
	for name, tableFirst := range map[string]bool{"table before the Envoy": true, "Envoy before the table": false} {
		t.Run(name, func(t *testing.T) {
			onBench(t, func(l *bench) {
				l.set("a", table("b", "c"))
				e := newEnvoy(t, "a")
				e.connect(l)
				e.cancel()
				e.said = nil

				again := newBench(t)
				if tableFirst {
					again.set("a", table("c", "d"))
				}
				e.connect(again)
				if !tableFirst {
					e.told()
					again.set("a", table("c", "d"))
				}
				e.told("clusters +d", "endpoints +d", "routes +front", "clusters -b")
				if e.ready() != 100 {
					t.Errorf("ready is %v", e.ready())
				}
				e.cancel()
				again.stop()
			})
		})
	}
}

func TestAnEnvoyThatWasNotReadyStaysSoUntilItHasRoutes(t *testing.T) {
	onBench(t, func(l *bench) {
		e := newEnvoy(t, "a")
		e.refuses["front"] = "bad route"
		l.set("a", table("b"))
		e.connect(l)
		e.told("runtime +peer_routing", "clusters +b", "endpoints +b", "routes +front rejected")
		e.cancel()
		again := newBench(t)
		again.set("a", table("b"))
		e.connect(again)
		e.told("routes +front rejected")
		if e.ready() != 0 {
			t.Errorf("ready is %v", e.ready())
		}
		e.cancel()
		again.stop()
	})
}

func TestARemovedTableLeavesTheEnvoyWhatItHas(t *testing.T) {
	onBench(t, func(l *bench) {
		l.set("a", table("b"))
		e := newEnvoy(t, "a")
		e.connect(l)
		e.said = nil
		l.publisher.Remove("a")
		e.told()
		e.cancel()
		e.connect(l)
		e.told()
		e.cancel()
		if s := l.publisher.Status(); len(s) != 0 {
			t.Errorf("still known: %v", s)
		}
	})
}

func TestTwoStreamsOfOneNodeAreServedEachByItself(t *testing.T) {
	onBench(t, func(l *bench) {
		l.set("a", table("b"))
		stuck, e := newEnvoy(t, "a"), newEnvoy(t, "a")
		stuck.connect(l)
		e.connect(l)
		stuck.said, e.said = nil, nil
		stuck.silent = true
		l.set("a", table("c"))
		e.told("clusters +c", "endpoints +c", "routes +front", "clusters -b")
		stuck.told("clusters +c")
		stuck.cancel()
		l.set("a", table("d"))
		e.told("clusters +d", "endpoints +d", "routes +front", "clusters -c")
		e.cancel()
	})
}

func TestWhoeverConnectsIsAnnouncedBeforeItIsAnswered(t *testing.T) {
	onBench(t, func(l *bench) {
		var nodes []string
		l.publisher.OnNode(func(node string, _ *structpb.Struct) {
			nodes = append(nodes, node)
			if err := l.publisher.Set(node, table("b")); err != nil {
				t.Error(err)
			}
		})
		e := newEnvoy(t, "a")
		e.connect(l)
		if len(nodes) != 1 || nodes[0] != "a" || e.ready() != 100 {
			t.Errorf("announced %v, ready %v", nodes, e.ready())
		}
		e.cancel()
	})
}

func TestAnInvalidTableIsRefusedAndTheLastGoodOneStays(t *testing.T) {
	onBench(t, func(l *bench) {
		l.set("a", table("b"))
		e := newEnvoy(t, "a")
		e.connect(l)
		e.said = nil
		bad := table("c")
		bad.Routes[0].VirtualHosts[0].Domains = nil
		twice := table("c", "c")
		empty := table("c")
		empty.Endpoints = nil
		for _, r := range []struct {
			of   string
			what func() error
		}{
			{"no domain", func() error { return l.publisher.Set("a", bad) }},
			{"a name twice", func() error { return l.publisher.Set("a", twice) }},
			{"no endpoints", func() error { return l.publisher.Set("a", empty) }},
		} {
			if err := r.what(); err == nil {
				t.Errorf("%s: no error", r.of)
			} else {
				t.Log(err)
			}
		}
		synctest.Wait()
		e.told()
		e.cancel()
	})
}

func TestMetricsPassPromlint(t *testing.T) {
	onBench(t, func(l *bench) {
		l.set("a", table("b"))
		e := newEnvoy(t, "a")
		e.connect(l)
		problems, err := testutil.GatherAndLint(l.metrics)
		if err != nil || len(problems) > 0 {
			t.Error(problems, err)
		}
		e.cancel()
	})
}

func TestAnEnvoyThatGotItsRoutesJustBeforeARestartBecomesReadyAfterIt(t *testing.T) {
	onBench(t, func(l *bench) {
		l.set("a", table("b"))
		e := newEnvoy(t, "a")
		e.connect(l)
		e.cancel()
		// The server ended before it said so.
		unready := newEnvoy(t, "other")
		unready.refuses["front"] = "bad route"
		l.set("other", table("b"))
		unready.connect(l)
		unready.cancel()
		e.has[resource.RuntimeType] = unready.has[resource.RuntimeType]
		e.said = nil

		again := newBench(t)
		again.set("a", table("b"))
		e.connect(again)
		e.told("runtime +peer_routing")
		if e.ready() != 100 {
			t.Errorf("ready is %v", e.ready())
		}
		e.cancel()
		again.stop()
	})
}
