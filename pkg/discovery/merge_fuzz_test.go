package discovery

import (
	"bytes"
	"os"
	"testing"
)

// FuzzMerge: whatever two servers send, what is accepted of it is merged by the laws.
func FuzzMerge(f *testing.F) {
	f.Add(false, render(view("apps/v1/a g/v1/r/s").Groups), render(view("g/v2/r ~g/v1/x apps/v1/a").Groups))
	f.Add(true, render(view("/v1/pods").Groups), render(view("/v1/pods/log /v2/pods").Groups))
	f.Add(false, render(view("a/v1/r b/v1/r c/v1/r").Groups), render(view("c/v1/r b/v1/r a/v1/r").Groups))
	var real [2][]byte
	for i, file := range []string{"testdata/documents/apis-1.36.3.json", "testdata/documents/apis-1.37.2.json"} {
		body, err := os.ReadFile(file)
		if err != nil {
			f.Fatal(err)
		}
		real[i] = body
	}
	f.Add(false, real[0], real[1])
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
