package lab

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	auditv1 "k8s.io/apiserver/pkg/apis/audit/v1"
)

const auditPolicy = `apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
- level: Metadata
`

func (l *Lab) auditPolicy() string { return filepath.Join(l.Dir, "audit-policy.yaml") }

func (n *Node) auditLog() string { return filepath.Join(n.Dir, "audit.log") }

// Audit is what the node's kube-apiserver has logged of its requests so far,
// oldest first.
func (n *Node) Audit() ([]auditv1.Event, error) {
	b, err := os.ReadFile(n.auditLog())
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var events []auditv1.Event
	for line := range bytes.Lines(b) {
		if !bytes.HasSuffix(line, []byte("\n")) {
			break // still being written
		}
		var e auditv1.Event
		if err := json.Unmarshal(line, &e); err != nil {
			return nil, fmt.Errorf("reading the audit log of %s: %w", n.Name, err)
		}
		events = append(events, e)
	}
	return events, nil
}

// WaitAudit waits for the first event that matches. A server logs a request
// just after it has answered it.
func (n *Node) WaitAudit(ctx context.Context, match func(*auditv1.Event) bool) (*auditv1.Event, error) {
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		events, err := n.Audit()
		if err != nil {
			return nil, err
		}
		for i := range events {
			if match(&events[i]) {
				return &events[i], nil
			}
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("no such event in the audit log of %s: %w", n.Name, ctx.Err())
		case <-tick.C:
		}
	}
}
