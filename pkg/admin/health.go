package admin

import (
	"fmt"
	"net/http"
	"strings"
)

// Check is one condition of readiness. Run returns why it does not hold.
type Check struct {
	Name string
	Run  func() error
}

// checks answers as a kube-apiserver does: "ok", or with ?verbose or on a failure a line for each check.
func checks(name string, all []Check) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var lines strings.Builder
		failed := false
		for _, c := range all {
			if err := c.Run(); err != nil {
				failed = true
				fmt.Fprintf(&lines, "[-]%s failed: %v\n", c.Name, err)
				continue
			}
			fmt.Fprintf(&lines, "[+]%s ok\n", c.Name)
		}
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		w.Header().Set("X-Content-Type-Options", "nosniff")
		w.Header().Set("Cache-Control", "no-cache, private")
		switch {
		case failed:
			w.WriteHeader(http.StatusServiceUnavailable)
			fmt.Fprintf(w, "%s%s check failed\n", lines.String(), name)
		case r.URL.Query().Has("verbose"):
			fmt.Fprintf(w, "%s%s check passed\n", lines.String(), name)
		default:
			fmt.Fprint(w, "ok")
		}
	})
}
