package peers

import (
	"context"
	"fmt"
	"slices"
	"time"

	"go.uber.org/zap"
	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	coordinationclient "k8s.io/client-go/kubernetes/typed/coordination/v1"
	"k8s.io/client-go/rest"
)

const (
	leaseNamespace = "kube-system"
	leaseSelector  = "apiserver.kubernetes.io/identity=kube-apiserver"
	hostnameLabel  = "kubernetes.io/hostname"
	// leaseCheck is how often leases are looked at again, since one ends without an event.
	leaseCheck = 30 * time.Second
)

// Leases reads the kube-apiservers' identity leases: evidence that a server exists, though it was never read. A lease's
// address is never used, since whoever can write leases could then have requests sent to himself.
type Leases struct {
	// Client lists and watches leases in kube-system.
	Client  *rest.Config
	Log     *zap.Logger
	Metrics *Metrics
}

// Run calls emit with the host names of all servers that hold a valid lease, sorted, once they were read and after
// every change, until ctx ends.
func (l Leases) Run(ctx context.Context, emit func([]string)) error {
	client, err := coordinationclient.NewForConfig(l.Client)
	if err != nil {
		return fmt.Errorf("making a client for the identity leases: %w", err)
	}
	updates := make(chan []*coordinationv1.Lease)
	watching := make(chan struct{})
	w := &watcher[*coordinationv1.Lease]{
		source: leaseSource, log: l.Log, metrics: l.Metrics, objects: map[string]*coordinationv1.Lease{},
		changed: func(list []*coordinationv1.Lease) {
			select {
			case updates <- list:
			case <-ctx.Done():
			}
		},
	}
	go func() {
		defer close(watching)
		run(ctx, w, client.Leases(leaseNamespace), &coordinationv1.Lease{}, func(o *metav1.ListOptions) {
			o.LabelSelector = leaseSelector
		})
	}()
	l.follow(ctx, updates, emit)
	<-watching
	return nil
}

// follow emits the valid host names when leases change, and when one ends by itself.
func (l Leases) follow(ctx context.Context, updates <-chan []*coordinationv1.Lease, emit func([]string)) {
	ticker := time.NewTicker(leaseCheck)
	defer ticker.Stop()
	var leases []*coordinationv1.Lease
	var last []string
	read := false
	for {
		select {
		case <-ctx.Done():
			return
		case leases = <-updates:
		case <-ticker.C:
			if !read {
				continue
			}
		}
		hosts := l.hosts(leases, time.Now())
		if !read || !slices.Equal(hosts, last) {
			read, last = true, hosts
			emit(slices.Clone(hosts))
		}
	}
}

// hosts gives the host names of the leases that are valid at a moment, sorted, each once, within MaxServers.
func (l Leases) hosts(leases []*coordinationv1.Lease, now time.Time) []string {
	var out []string
	for _, lease := range leases {
		if !valid(lease, now) {
			continue
		}
		host := lease.Labels[hostnameLabel]
		if len(validation.IsDNS1123Subdomain(host)) > 0 {
			l.Metrics.rejected.WithLabelValues(leaseSource).Inc()
			l.Log.Debug("an identity lease is left out: its label "+hostnameLabel+" is no host name",
				zap.String("lease", lease.Name), zap.String("hostname", host))
			continue
		}
		out = append(out, host)
	}
	slices.Sort(out)
	out = slices.Compact(out)
	if len(out) > MaxServers {
		l.Metrics.rejected.WithLabelValues(leaseSource).Add(float64(len(out) - MaxServers))
		l.Log.Warn("there are more identity leases than servers are supported", zap.Int("leases", len(out)), zap.Int("supported", MaxServers))
		out = out[:MaxServers]
	}
	return out
}

// valid says whether a lease is held: renewed, and not longer ago than it lasts.
func valid(lease *coordinationv1.Lease, now time.Time) bool {
	s := lease.Spec
	if s.RenewTime == nil || s.LeaseDurationSeconds == nil || *s.LeaseDurationSeconds <= 0 {
		return false
	}
	return s.RenewTime.Add(time.Duration(*s.LeaseDurationSeconds) * time.Second).After(now)
}
