package discovery

import (
	"bytes"
	"testing"
)

// FuzzMerge: whatever two servers send, what is accepted of it is merged by the laws.
func FuzzMerge(f *testing.F) {
	f.Add(false, render(view("apps/v1/a g/v1/r/s").Groups), render(view("g/v2/r ~g/v1/x apps/v1/a").Groups))
	f.Add(true, render(view("/v1/pods").Groups), render(view("/v1/pods/log /v2/pods").Groups))
	f.Add(false, render(view("a/v1/r b/v1/r c/v1/r").Groups), render(view("c/v1/r b/v1/r a/v1/r").Groups))
	full := manyCRDs(1, "own.test")
	f.Add(false, render(full.Groups[1:]), render(view("g00000.example.test/v1/things0/scale").Groups))
	f.Fuzz(func(t *testing.T, core bool, a, b []byte) {
		var views []*View
		for _, body := range [][]byte{a, b} {
			d, err := parseDocument(bytes.NewReader(body), core)
			if err != nil {
				return
			}
			views = append(views, &View{Groups: d.groups})
		}
		holdLaws(t, views)
		merged := Merge(views...)
		if again, err := parseDocument(bytes.NewReader(render(merged.Groups)), core); err != nil || len(again.dropped) > 0 {
			t.Errorf("what was merged can't be read: %v %v", err, again.dropped)
		}
		holdLegacyLaws(t, merged)
	})
}
