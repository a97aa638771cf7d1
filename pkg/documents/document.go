package documents

import (
	"errors"
	"net/http"
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// document is one discovery document in all its representations, each rendered once, when it is first asked for.
type document struct {
	// aggregated is nil where there is none.
	aggregated *form
	legacy     *form

	lock     sync.Mutex
	contents map[representation]func() *content
}

func (d *document) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	form := d.legacy
	if d.aggregated != nil {
		if _, ok := asksAggregated(req.Header.Get("Accept"), offered(req)); ok {
			form = d.aggregated
		}
	}
	chosen, err := form.negotiate(req)
	if err != nil {
		w.Header().Set("Cache-Control", cachePrivate)
		refuse(w, err)
		return
	}
	content := d.content(form, chosen)
	if content == nil {
		w.Header().Set("Cache-Control", cachePrivate)
		refuse(w, apierrors.NewInternalError(errors.New("the discovery document could not be encoded")))
		return
	}
	for name, value := range form.header {
		w.Header().Set(name, value)
	}
	content.serve(w, req)
}

// content returns the document in a representation, or nil if it can't be had in it.
func (d *document) content(form *form, chosen representation) *content {
	d.lock.Lock()
	get, ok := d.contents[chosen]
	if !ok {
		get = sync.OnceValue(func() *content { return form.encode(chosen) })
		if d.contents == nil {
			d.contents = map[representation]func() *content{}
		}
		d.contents[chosen] = get
	}
	d.lock.Unlock()
	return get()
}
