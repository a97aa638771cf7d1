package routing

import (
	"context"
	"fmt"
	"time"

	"xds-server/test/e2e/suite"
	"xds-server/test/plane"
)

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
