package discovery

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"testing"
)

const index = `{"paths":{".well-known/openid-configuration":{"serverRelativeURL":"/openapi/v3/.well-known/openid-configuration?hash=AA"},` +
	`"api/v1":{"serverRelativeURL":"/openapi/v3/api/v1?hash=BB"},"apis/apps/v1":{"serverRelativeURL":"/openapi/v3/apis/apps/v1?hash=CC","more":[1]}},"more":{}}`

func TestTheOpenAPIIndexIsRead(t *testing.T) {
	got, left, err := parseIndex(strings.NewReader(index))
	if err != nil || len(left.dropped) != 0 {
		t.Fatalf("%v %v", left, err)
	}
	if want := "map[.well-known/openid-configuration:{AA []} api/v1:{BB []} apis/apps/v1:{CC []}]"; fmt.Sprint(got) != want {
		t.Errorf("got %v", got)
	}
}

func TestEntriesOfTheIndexThatLeadElsewhereAreLeftOut(t *testing.T) {
	for path, url := range map[string]string{
		"api/v1":                        "/openapi/v3/api/v2?hash=A",
		"apis/a/v1":                     "https://example.com/openapi/v3/apis/a/v1?hash=A",
		"apis/b/v1":                     "/openapi/v3/apis/b/v1",
		"apis/c/v1":                     "/openapi/v3/apis/c/v1?hash=",
		"apis/d/v1":                     "/openapi/v3/apis/d/v1?hash=A&x=y",
		"apis/e/v1":                     "/openapi/v3/apis/e/v1?hash=A%0d%0aX",
		"apis/../../readyz":             "/openapi/v3/apis/../../readyz?hash=A",
		"apis//v1":                      "/openapi/v3/apis//v1?hash=A",
		"apis/f/v1?x":                   "/openapi/v3/apis/f/v1?x?hash=A",
		"apis/%67/v1":                   "/openapi/v3/apis/%67/v1?hash=A",
		"":                              "/openapi/v3/?hash=A",
		"apis/long/v1":                  "/openapi/v3/apis/long/v1?hash=" + strings.Repeat("A", maxSchemaHash+1),
		strings.Repeat("a/", 300) + "a": "/openapi/v3/" + strings.Repeat("a/", 300) + "a?hash=A",
	} {
		doc := marshal(map[string]any{"paths": map[string]any{path: map[string]string{"serverRelativeURL": url}, "api/ok": map[string]string{"serverRelativeURL": "/openapi/v3/api/ok?hash=A"}}})
		got, left, err := parseIndex(bytes.NewReader(doc))
		if err != nil || len(got) != 1 || left.dropped[reasonInvalid] != 1 || left.first == "" {
			t.Errorf("%.60q: %v %v %v", path, got, left, err)
		}
	}
}

func TestABrokenIndexIsNoIndex(t *testing.T) {
	var many strings.Builder
	for i := range maxSchemas + 1 {
		fmt.Fprintf(&many, `,"%d":{}`, i)
	}
	for name, doc := range map[string]string{
		"nothing": "", "no object": `[]`, "half": index[:100], "two": index + index, "a list": `{"paths":[]}`, "no paths": `{}`,
		"a number": `{"paths":{"api/v1":{"serverRelativeURL":1}}}`, "twice": `{"paths":{"a":{},"a":{}}}`, "too many": `{"paths":{"a":{}` + many.String() + `}}`,
	} {
		if _, _, err := parseIndex(strings.NewReader(doc)); err == nil || name == "too many" && !errors.Is(err, errTooLarge) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func FuzzTheOpenAPIIndex(f *testing.F) {
	f.Add([]byte(index))
	f.Add([]byte(`{"paths":null}`))
	f.Fuzz(func(t *testing.T, doc []byte) {
		got, left, err := parseIndex(bytes.NewReader(doc))
		if err != nil {
			return
		}
		for path, s := range got {
			if !validSchemaPath(path) || s.Hash == "" || len(s.Hash) > maxSchemaHash || s.JSON != nil || strings.ContainsAny(path+s.Hash, "?&#%\r\n \"\\<") {
				t.Errorf("%q: %+v", path, s)
			}
		}
		if len(left.first) > 1000 {
			t.Errorf("%d characters for the log", len(left.first))
		}
	})
}
