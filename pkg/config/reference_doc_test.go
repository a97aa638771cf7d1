package config

import (
	"flag"
	"os"
	"testing"
)

var update = flag.Bool("update", false, "rewrite docs/configuration.md")

const referenceHead = `# Configuration

Flags stand over environment variables, those over the file given by ` + "`--config`" + ` (or ` + "`XDS_SERVER_CONFIG`" + `), and that over the
defaults. Unknown keys are errors. This page is written from the code (` + "`go test ./pkg/config -update`" + `).

`

func TestTheReferenceIsWhatTheCodeSays(t *testing.T) {
	const file = "../../docs/configuration.md"
	want := referenceHead + Reference()
	if *update {
		if err := os.WriteFile(file, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if string(got) != want {
		t.Errorf("%s is not what the code says; rewrite it with -update", file)
	}
}
