package routing

import (
	"context"
	"fmt"
	"time"

	auditv1 "k8s.io/apiserver/pkg/apis/audit/v1"

	"xds-server/test/e2e/suite"
	"xds-server/test/lab"
	"xds-server/test/plane"
)

// audited is what a server has logged of the requests with these user agents, one of each. It waits for all of them,
// since a server logs a request just after it has answered it.
func audited(s *suite.S, n *lab.Node, agents []string) map[string]auditv1.Event {
	s.Helper()
	ctx, cancel := context.WithTimeout(s.Ctx, 10*time.Second)
	defer cancel()
	got := map[string]auditv1.Event{}
	err := plane.Eventually(ctx, "they are in the audit log of "+n.Name, func() error {
		events, err := n.Audit()
		if err != nil {
			return err
		}
		for _, e := range events {
			got[e.UserAgent] = e
		}
		for _, agent := range agents {
			if _, ok := got[agent]; !ok {
				return fmt.Errorf("no event of %q", agent)
			}
		}
		return nil
	})
	if err != nil {
		s.Fatal(err)
	}
	found := make(map[string]auditv1.Event, len(agents))
	for _, agent := range agents {
		found[agent] = got[agent]
	}
	return found
}

// auditCounts is how many requests with a user agent each of the nodes' servers has logged, once that are total.
func auditCounts(s *suite.S, agent string, total int, nodes ...*plane.Node) []int {
	s.Helper()
	ctx, cancel := context.WithTimeout(s.Ctx, 10*time.Second)
	defer cancel()
	var counts []int
	err := plane.Eventually(ctx, "every request is in an audit log", func() error {
		counts = counts[:0]
		sum := 0
		for _, n := range nodes {
			events, err := n.Audit()
			if err != nil {
				return err
			}
			count := 0
			for _, e := range events {
				if e.UserAgent == agent {
					count++
				}
			}
			counts = append(counts, count)
			sum += count
		}
		if sum != total {
			return fmt.Errorf("%v of %d requests of %q are", counts, total, agent)
		}
		return nil
	})
	if err != nil {
		s.Fatal(err)
	}
	return counts
}
