package envoy_test

import (
	"bufio"
	"fmt"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"xds-server/envoy/lua"
	"xds-server/envoy/luatest"
)

// A script can't be interrupted: a path that it takes long over stops every connection of its worker. Envoy lets 1 MB of
// path in, from anybody.
func TestALongPathCostsNoMoreThanItsLength(t *testing.T) {
	const n = 400_000
	parts := map[string]string{
		"slashes at the end":            "/api/v1/pods" + strings.Repeat("/", n),
		"slashes before the end":        "/" + strings.Repeat("/", n) + "x/",
		"slashes inside":                "/api/v1/pods/" + strings.Repeat("/", n) + "x",
		"escaped slashes":               "/api/v1/pods/" + strings.Repeat("%2F", n/3) + "x/",
		"escapes":                       "/api/v1/pods/" + strings.Repeat("%41", n/3),
		"half escapes":                  "/api/v1/pods/" + strings.Repeat("%", n),
		"segments":                      "/apis/" + strings.Repeat("a/", n/2),
		"one long group":                "/apis/" + strings.Repeat("a.", n/2) + "/v1/things",
		"one long version":              "/apis/apps/" + strings.Repeat("v", n),
		"one long resource":             "/apis/apps/v1/" + strings.Repeat("r-", n/2) + "/",
		"namespaces":                    "/api/v1/" + strings.Repeat("namespaces/", n/11),
		"watches":                       "/api/v1/" + strings.Repeat("watch/", n/6),
		"proxies":                       "/api/v1/namespaces/a/pods/b/" + strings.Repeat("proxy/", n/6),
		"a query of question marks":     "/api/v1/pods?" + strings.Repeat("?", n),
		"an OpenAPI document's slashes": "/openapi/v3/apis/" + strings.Repeat("/", n) + "x",
	}
	for _, script := range []struct{ name, text string }{
		{"front", lua.Front(lua.Config{CAFile: "/nonexistent"})},
		{"fallback", lua.Fallback(lua.Config{CAFile: "/nonexistent"})},
	} {
		e := luatest.Start(t, luatest.Config{Script: script.text})
		for name, path := range parts {
			if err := answered(e.Socket, path); err != nil {
				t.Errorf("%s: %s: %v", script.name, name, err)
			}
		}
	}
}

// answered is nil if a request for a path gets any answer, within a time in which a linear script is long done.
func answered(socket, path string) error {
	conn, err := net.Dial("unix", socket)
	if err != nil {
		return err
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(30 * time.Second)); err != nil {
		return err
	}
	if _, err := fmt.Fprintf(conn, "GET %s HTTP/1.1\r\nHost: front\r\n\r\n", path); err != nil {
		return err
	}
	res, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		return err
	}
	return res.Body.Close()
}
