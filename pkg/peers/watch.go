package peers

import (
	"context"
	"maps"
	"slices"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
)

// Metrics counts what goes wrong while the cluster's own objects are read. One serves all readers of a process.
type Metrics struct {
	failures *prometheus.CounterVec
	rejected *prometheus.CounterVec
}

// NewMetrics registers the package's metrics.
func NewMetrics(reg prometheus.Registerer) *Metrics {
	m := &Metrics{
		failures: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "xds_server_source_read_failures_total",
			Help: "Failed lists and watches of the objects that tell who the kube-apiservers are, by object.",
		}, []string{"source"}),
		rejected: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "xds_server_source_rejected_entries_total",
			Help: "Entries of those objects that were not usable and left out, by object.",
		}, []string{"source"}),
	}
	for _, source := range []string{sliceSource, leaseSource} {
		m.failures.WithLabelValues(source)
		m.rejected.WithLabelValues(source)
	}
	reg.MustRegister(m.failures, m.rejected)
	return m
}

// Names of the sources in metrics and logs.
const (
	sliceSource = "endpointslice"
	leaseSource = "leases"
)

// watcher keeps the objects of one list up to date and calls changed after every change, one call at a time.
type watcher[T metav1.Object] struct {
	source  string
	log     *zap.Logger
	metrics *Metrics
	changed func([]T)

	mu      sync.Mutex
	objects map[string]T
}

// lister is what the typed clients have in common.
type lister[L runtime.Object] interface {
	List(ctx context.Context, o metav1.ListOptions) (L, error)
	Watch(ctx context.Context, o metav1.ListOptions) (watch.Interface, error)
}

// run lists and watches until ctx ends. While the API can't be read the last objects stay; client-go tries again with
// its own backoff.
func run[T metav1.Object, L runtime.Object](ctx context.Context, w *watcher[T], client lister[L], expected T, restrict func(*metav1.ListOptions)) {
	failed := func(what string, err error) {
		if err == nil || ctx.Err() != nil {
			return
		}
		w.metrics.failures.WithLabelValues(w.source).Inc()
		w.log.Warn("the cluster's own objects can't be read, the last ones stay", zap.String("source", w.source),
			zap.String("call", what), zap.Error(err))
	}
	lw := &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			restrict(&o)
			l, err := client.List(ctx, o)
			failed("list", err)
			if err != nil {
				return nil, err
			}
			return l, nil
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			restrict(&o)
			i, err := client.Watch(ctx, o)
			// A server before 1.32 can't stream a list; client-go then lists and watches, and nothing has failed.
			if o.SendInitialEvents == nil || !apierrors.IsInvalid(err) {
				failed("watch", err)
			}
			return i, err
		},
	}
	// What client-go logs about failures by itself is said above already.
	quiet := klog.New(nil)
	r := cache.NewReflectorWithOptions(cache.ToListWatcherWithWatchListSemantics(lw, client), expected, w,
		cache.ReflectorOptions{Name: w.source, Logger: &quiet})
	r.RunWithContext(klog.NewContext(ctx, quiet))
}

func (w *watcher[T]) change(f func()) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	f()
	keys := slices.Sorted(maps.Keys(w.objects))
	list := make([]T, 0, len(keys))
	for _, k := range keys {
		list = append(list, w.objects[k])
	}
	w.changed(list)
	return nil
}

func (w *watcher[T]) put(obj any) error {
	o, ok := obj.(T)
	if !ok {
		return nil
	}
	return w.change(func() { w.objects[o.GetName()] = o })
}

// Add, Update, Delete, Replace and Resync implement cache.ReflectorStore.
func (w *watcher[T]) Add(obj any) error    { return w.put(obj) }
func (w *watcher[T]) Update(obj any) error { return w.put(obj) }

func (w *watcher[T]) Delete(obj any) error {
	o, ok := obj.(T)
	if !ok {
		return nil
	}
	return w.change(func() { delete(w.objects, o.GetName()) })
}

func (w *watcher[T]) Replace(list []any, _ string) error {
	return w.change(func() {
		w.objects = make(map[string]T, len(list))
		for _, obj := range list {
			if o, ok := obj.(T); ok {
				w.objects[o.GetName()] = o
			}
		}
	})
}

func (w *watcher[T]) Resync() error { return nil }
