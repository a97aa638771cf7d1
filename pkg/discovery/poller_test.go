package discovery

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
	"go.uber.org/zap"

	"xds-server/pkg/peers"
)

func TestEveryServerIsReadAtOnce(t *testing.T) {
	inWorld(t, func(w *world) {
		w.serves("b", "/v1/pods")
		w.serves("a", "/v1/nodes")
		w.lists("b", "a")
		w.expect("a ready [/v1/nodes]; b ready [/v1/pods]")
	})
}

func TestAServerThatHangsDelaysNobody(t *testing.T) {
	inWorld(t, func(w *world) {
		w.serves("a", "/v1/pods")
		w.hangs("b")
		w.lists("a", "b")
		w.pass(time.Minute)
		w.expect("a ready [/v1/pods]; b [?]")
		if n := len(w.asked("a:1")); n < 28 || n > 34 {
			t.Errorf("a was read %d times in a minute", n)
		}
		w.serves("a", "/v1/pods", "/v1/secrets")
		w.pass(3 * time.Second)
		w.expect("a ready [/v1/pods /v1/secrets]; b [?]")
	})
}

func TestOnlyWhatMattersIsToldAsAChange(t *testing.T) {
	inWorld(t, func(w *world) {
		if len(w.changes) != 0 {
			t.Error("something was told before there was a list")
		}
		w.serves("a", "/v1/pods")
		w.lists("a")
		before := len(w.changes)
		read := w.poller.Snapshot()[0].Read
		w.pass(10 * time.Minute)
		if n := len(w.changes) - before; n != 0 {
			t.Errorf("%d changes, though nothing changed", n)
		}
		if !w.poller.Snapshot()[0].Read.After(read) {
			t.Error("the view is as old as it was, though it was confirmed")
		}
		w.says("a", starting)
		w.pass(3 * time.Second)
		w.serves("a", "/v1/secrets")
		w.pass(3 * time.Second)
		if n := len(w.changes) - before; n != 2 {
			t.Errorf("%d changes instead of 2: unready, and ready with another view", n)
		}
		w.lists("a")
		if n := len(w.changes) - before; n != 2 {
			t.Error("the same list was told as a change")
		}
	})
}

func TestAServerThatStartsOrIsUnreachableKeepsItsView(t *testing.T) {
	for name, r := range map[string]reading{
		"starting": starting, "down": down,
		"refuses": {result: resultRefused, ready: notSaid, err: errors.New("401")},
		"broken":  {result: resultInvalid, ready: isReady, err: errors.New("no JSON")},
	} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, func(w *world) {
				w.serves("a", "/v1/pods")
				w.lists("a")
				w.says("a", r)
				w.pass(hold - time.Minute)
				// Nobody can say that a server is down which answers, though not to us.
				want := "a [/v1/pods]"
				if r.ready == notSaid || r.ready == isReady {
					want = "a ready [/v1/pods]"
				}
				w.expect(want)
			})
		})
	}
}

func TestOneLostAnswerIsNoOutage(t *testing.T) {
	inWorld(t, func(w *world) {
		good, lost := reading{result: resultConfirmed, ready: isReady, view: &View{Groups: groups("/v1/pods")}}, 0
		w.says("a", good)
		w.lists("a")
		w.answer("a:1", func(context.Context) reading {
			if lost++; lost%2 == 1 {
				return down
			}
			return good
		})
		before := len(w.changes)
		w.pass(time.Minute)
		if lost < 20 || len(w.changes) != before {
			t.Errorf("%d changes after %d reads, of which every second was lost", len(w.changes)-before, lost)
		}
	})
}

func TestAServerThatIsDownIsKnownToBeWithinASecondAfterItsNextRead(t *testing.T) {
	inWorld(t, func(w *world) {
		w.serves("a", "/v1/pods")
		w.lists("a")
		w.says("a", down)
		w.pass(interval + time.Second)
		w.expect("a [/v1/pods]")
	})
}

func TestAServerThatIsDownIsAskedLessAndLessButAlwaysWithinSeconds(t *testing.T) {
	inWorld(t, func(w *world) {
		w.says("a", down)
		w.lists("a")
		w.pass(10 * time.Minute)
		asked := w.asked("a:1")
		if n := len(asked); n > 140 {
			t.Errorf("asked %d times in ten minutes", n)
		}
		for i := 1; i < len(asked); i++ {
			if d := asked[i].Sub(asked[i-1]); d > lastBackoff*11/10 {
				t.Errorf("%s between two reads", d)
			}
		}
		w.serves("a", "/v1/pods")
		w.pass(lastBackoff * 11 / 10)
		w.expect("a ready [/v1/pods]")
	})
}

func TestTheViewOfAServerThatNeverComesBackEndsWithItsHold(t *testing.T) {
	inWorld(t, func(w *world) {
		w.serves("a", "/v1/pods")
		w.lists("a")
		w.says("a", down)
		w.pass(hold - time.Second)
		w.expect("a [/v1/pods]")
		before := len(w.changes)
		w.pass(2 * time.Second)
		w.expect("a [?]")
		if len(w.changes) != before+1 {
			t.Errorf("%d changes instead of one", len(w.changes)-before)
		}
		w.serves("a", "/v1/pods")
		w.pass(lastBackoff * 2)
		w.expect("a ready [/v1/pods]")
	})
}

func TestAServerThatLeavesTheListCountsUntilItsHoldEnds(t *testing.T) {
	inWorld(t, func(w *world) {
		w.serves("a", "/v1/pods")
		w.serves("b", "/v1/nodes")
		w.lists("a", "b")
		w.lists("a")
		w.expect("a ready [/v1/pods]; b ready gone [/v1/nodes]")
		w.says("b", down)
		w.pass(hold - time.Minute)
		w.expect("a ready [/v1/pods]; b gone [/v1/nodes]")
		w.pass(time.Minute + 5*time.Second)
		w.expect("a ready [/v1/pods]")
		asked := len(w.asked("b:1"))
		w.pass(time.Minute)
		if len(w.asked("b:1")) != asked {
			t.Error("it is still read")
		}
	})
}

func TestAServerThatIsDrainingStillSaysWhatItServes(t *testing.T) {
	inWorld(t, func(w *world) {
		w.serves("a", "/v1/pods")
		w.lists("a")
		w.lists()
		w.serves("a", "/v1/secrets")
		w.pass(3 * time.Second)
		w.expect("a ready gone [/v1/secrets]")
		w.says("a", starting)
		w.pass(3 * time.Second)
		w.expect("a gone [/v1/secrets]")
		w.lists("a")
		w.serves("a", "/v1/pods")
		w.pass(3 * time.Second)
		w.expect("a ready [/v1/pods]")
	})
}

func TestAServerThatWasNeverReadIsKnownToExistUntilItsHoldEnds(t *testing.T) {
	inWorld(t, func(w *world) {
		w.says("a", down)
		w.lists("a")
		w.lists()
		w.pass(hold - time.Second)
		w.expect("a gone [?]")
		w.pass(2 * time.Second)
		w.expect("")
	})
}

func TestTheLocalServerIsReadDirectly(t *testing.T) {
	inWorld(t, func(w *world) {
		w.serves("localhost", "/v1/pods")
		w.lists("local")
		w.expect("local ready [/v1/pods]")
		if o := w.poller.Snapshot()[0]; o.Server != at("local") {
			t.Errorf("peers would be told another address: %+v", o.Server)
		}
	})
}

func TestAServerThatMovesIsReadWhereItIsNow(t *testing.T) {
	inWorld(t, func(w *world) {
		w.serves("a", "/v1/pods")
		w.serves("elsewhere", "/v1/nodes")
		w.lists("a")
		// The old address answers only once the new one has: this must not count.
		w.answer("a:1", func(ctx context.Context) reading {
			<-ctx.Done()
			return reading{result: resultRead, ready: isReady, view: &View{Groups: groups("/v1/old")}}
		})
		w.pass(3 * time.Second)
		w.list <- []peers.Server{{Name: "a", Address: "elsewhere:1"}}
		synctest.Wait()
		w.expect("a ready [/v1/nodes]")
		w.pass(time.Minute)
		w.expect("a ready [/v1/nodes]")
	})
}

func TestReadyMeansThatEveryReachableServerWasRead(t *testing.T) {
	inWorld(t, func(w *world) {
		if err := w.poller.AllRead(); err == nil || !strings.Contains(err.Error(), "list") {
			t.Errorf("without a list: %v", err)
		}
		w.serves("a", "/v1/pods")
		w.answer("b:1", func(context.Context) reading { time.Sleep(4 * time.Second); return down })
		w.lists("a", "b")
		if err := w.poller.AllRead(); err == nil || !strings.Contains(err.Error(), "[b]") {
			t.Errorf("while b is read: %v", err)
		}
		w.pass(5 * time.Second)
		if err := w.poller.AllRead(); err == nil {
			t.Error("one lost answer was taken for a server that can't be reached")
		}
		w.pass(5 * time.Second)
		if err := w.poller.AllRead(); err != nil {
			t.Errorf("b is known to be unreachable: %v", err)
		}
		w.answer("c:1", func(context.Context) reading { time.Sleep(4 * time.Second); return down })
		w.lists("a", "b", "c")
		if err := w.poller.AllRead(); err != nil {
			t.Errorf("a server that comes later takes readiness away: %v", err)
		}
	})
}

func TestASourceThatFailsEndsTheRun(t *testing.T) {
	p := NewPoller(Options{Source: failing{}, Log: zap.NewNop(), Registerer: prometheus.NewRegistry()})
	if err := p.Run(t.Context()); err == nil || !strings.Contains(err.Error(), "finding the kube-apiservers") {
		t.Errorf("got %v", err)
	}
}

type failing struct{}

func (failing) Run(context.Context, func([]peers.Server)) error { return errors.New("no kubeconfig") }

func TestMetricsSayHowEachServerIsRead(t *testing.T) {
	inWorld(t, func(w *world) {
		w.says("a", reading{result: resultRead, ready: isReady, view: &View{}, dropped: map[string]int{reasonInvalid: 3}})
		w.says("b", starting)
		w.lists("a", "b")
		got := w.metrics()
		for _, want := range []string{
			`xds_server_polls_total{result=read,server=a} 1`, `xds_server_polls_total{result=unready,server=b} 1`,
			`xds_server_polls_total{result=unreachable,server=b} 0`, `xds_server_apiserver_ready{server=a} 1`, `xds_server_apiserver_ready{server=b} 0`,
			`xds_server_invalid_names_total{reason=invalid,server=a} 3`,
			fmt.Sprintf(`xds_server_view_confirmed_timestamp_seconds{server=a} %d`, time.Now().Unix()),
		} {
			if !slices.Contains(got, want) {
				t.Errorf("%s is missing in\n%s", want, strings.Join(got, "\n"))
			}
		}
		families, err := w.reg.Gather()
		if err != nil {
			t.Fatal(err)
		}
		problems, err := promlint.NewWithMetricFamilies(families).Lint()
		if err != nil || len(problems) != 0 {
			t.Errorf("%v %v", problems, err)
		}
		// What is forgotten leaves no series behind.
		w.says("a", down)
		w.lists("b")
		w.pass(hold + time.Minute)
		for _, m := range w.metrics() {
			if strings.Contains(m, "server=a") {
				t.Errorf("left behind: %s", m)
			}
		}
	})
}

// A worker may hand in its last reading just after it was stopped; TestAServerThatMovesIsReadWhereItIsNow can't make
// the two meet, so this is said of the owner alone.
func TestALastReadingOfAnOldAddressDoesNotCount(t *testing.T) {
	p := NewPoller(Options{Log: zap.NewNop(), Registerer: prometheus.NewRegistry()})
	s := &server{worker: 2, observation: Observation{Server: at("a")}}
	o := &owner{Poller: p, servers: map[string]*server{"a": s}}
	old := reading{result: resultRead, ready: isReady, view: &View{}}
	if changed, _ := o.result(result{server: s, worker: 1, reading: old}, time.Now()); changed || s.observation.View != nil || s.tried {
		t.Error("it counted")
	}
	if changed, _ := o.result(result{server: s, worker: 2, reading: old}, time.Now()); !changed || s.observation.View == nil {
		t.Error("a reading of the present address did not count")
	}
}
