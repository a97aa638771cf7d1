package discovery

import (
	"errors"
	"fmt"
	"maps"
	"net/http"
	"regexp"
	"strings"
	"testing"
	"time"

	"xds-server/test/e2e/suite"
	"xds-server/test/lab"
	"xds-server/test/plane"
)

const (
	manyDefinitions = 5000
	manyGroups      = 500
)

// It takes a lab of its own and some minutes: make test leaves it out.
func TestManyDefinitions(t *testing.T) {
	w := alone(t, plane.Options{},
		lab.NodeConfig{Name: "old", Version: lab.Kube136}, lab.NodeConfig{Name: "new", Version: lab.Kube137})
	p := pair{world: w, name: "1.36+1.37"}
	suite.Long(t, 15*time.Minute, "A8", fmt.Sprintf("%d CRDs on both servers: documents are right, memory and time to merge are printed", manyDefinitions), func(s *suite.S) {
		client := s.Client(p.Lab, p.Admin(), lab.HTTP2)
		before := memory(s, p)
		objects := manyObjects(s, p, client)
		for _, n := range p.nodes {
			if err := n.Server.Stop(s.Ctx); err != nil {
				s.Fatal(err)
			}
		}
		if err := p.Store(s.Ctx, objects); err != nil {
			s.Fatal(err)
		}
		began := time.Now()
		for _, n := range p.nodes {
			if err := n.Server.Start(); err != nil {
				s.Fatal(err)
			}
		}
		for _, n := range p.nodes {
			eventually(s, 10*time.Minute, n.Name+" lists them all itself", func() error {
				groups, err := list(s, client, n.DirectURL(), nopeer)
				if err == nil {
					if got := manyListed(groups); got != manyDefinitions {
						err = fmt.Errorf("it lists %d", got)
					}
				}
				return err
			})
		}
		for _, n := range p.nodes {
			eventually(s, 5*time.Minute, n.Name+" is ready", func() error { return n.Server.WaitReady(s.Ctx) })
		}
		fmt.Printf("       all listed by both servers, which are ready, after %.1f s\n", time.Since(began).Seconds())
		want, listed := union(s, p.world, p.nodes...), time.Now()
		for _, n := range p.nodes {
			eventually(s, time.Minute, "the front of "+n.Name+" lists them all", func() error {
				groups, err := list(s, client, n.FrontURL(), "")
				if err == nil {
					err = want(groups)
				}
				return err
			})
		}
		fmt.Printf("       all listed by both fronts %.1f s after\n", time.Since(listed).Seconds())
		var tags []string
		for _, n := range p.nodes {
			a := s.Call(client, "GET", n.FrontURL()+"/apis", "", http.Header{"Accept": {asJSON + aggregated}})
			tags = append(tags, a.Header.Get("ETag"))
			fmt.Printf("       /apis of %s: %d bytes\n", n.Name, len(a.Body))
		}
		if tags[0] != tags[1] || tags[0] == "" {
			s.Errorf("ETags %v", tags)
		}
		// OpenAPI follows: kube-apiservers put theirs together for minutes.
		eventually(s, 5*time.Minute, "OpenAPI's index is the same at both fronts and has every group", func() error {
			var indexes []map[string]string
			for _, n := range p.nodes {
				index, err := readIndex(s, client, n.FrontURL())
				if err != nil {
					return err
				}
				for g := range manyGroups {
					if path := fmt.Sprintf("apis/g%d.many.example.com/v1", g); index[path] == "" {
						return fmt.Errorf("%s is missing at %s", path, n.Name)
					}
				}
				indexes = append(indexes, index)
			}
			if !maps.Equal(indexes[0], indexes[1]) {
				return errors.New("the indexes differ")
			}
			return nil
		})
		fmt.Printf("       OpenAPI's index is the same at both fronts %.1f s after\n", time.Since(listed).Seconds())
		for _, n := range p.nodes {
			// Servers' own documents go on changing for a while.
			eventually(s, 5*time.Minute, "the index of "+n.Name+" leads to a document", func() error {
				index, err := readIndex(s, client, n.FrontURL())
				if err != nil {
					return err
				}
				a, err := lab.Call(s.Ctx, client, "GET", n.FrontURL()+index["apis/g7.many.example.com/v1"], "", nil)
				if err == nil && (a.Status != 200 || !strings.Contains(string(a.Body), `"Thing7"`)) {
					err = fmt.Errorf("it answered %d: %.300s", a.Status, a.Body)
				}
				return err
			})
			s.Want(client, "GET", n.FrontURL()+"/apis/g7.many.example.com/v1", "", 200, `"things7"`)
		}
		for _, d := range []document{
			{"/apis", asJSON}, {"/apis", asYAML}, {"/apis", asProtobuf + aggregated}, {"/apis/g7.many.example.com/v1", asProtobuf},
		} {
			eventually(s, 5*time.Minute, d.path+" as "+d.accept+" is the same at both fronts and has the last group", func() error {
				var bodies []string
				for _, n := range p.nodes {
					a, err := lab.Call(s.Ctx, client, "GET", n.FrontURL()+d.path, "", http.Header{"Accept": {d.accept}})
					if err == nil && (a.Status != 200 || !strings.Contains(string(a.Body), "g7.many.example.com")) {
						err = fmt.Errorf("%s answered %d, %d bytes", n.Name, a.Status, len(a.Body))
					}
					if err != nil {
						return err
					}
					bodies = append(bodies, string(a.Body))
				}
				if bodies[0] != bodies[1] {
					return fmt.Errorf("%d and %d bytes", len(bodies[0]), len(bodies[1]))
				}
				return nil
			})
			fmt.Printf("       %s as %.60s: the same at both fronts %.1f s after\n", d.path, d.accept, time.Since(listed).Seconds())
		}
		// Of /openapi/v2 there is a bound (docs/limits.md): beyond it each server's own is given, and says so.
		for _, n := range p.nodes {
			a := s.Call(client, "GET", n.FrontURL()+"/openapi/v2", "", nil)
			said := a.Header.Get(toldBy)
			fmt.Printf("       /openapi/v2 of %s: %d, %d bytes, %s\n", n.Name, a.Status, len(a.Body), said)
			// A kube-apiserver itself takes more than its minute for so many: 504.
			if a.Status != 200 && a.Status != 503 && a.Status != 504 || a.Status == 200 && said != "merged" && said != "partial" {
				s.Errorf("/openapi/v2 of %s answered %d, %q: %.300s", n.Name, a.Status, said, a.Body)
			}
		}
		after := memory(s, p)
		for i, n := range p.nodes {
			fmt.Printf("       xds-server of %s: %d MB resident, %d MB before; %s\n", n.Name, after[i]>>20, before[i]>>20, durations(s, n.AdminURL))
		}
	})
}

// manyObjects are the CRDs as they stand in etcd. Servers take a quarter of an hour to establish so many new ones, and
// half a minute to load them, so one is made by a server and the others are like it.
func manyObjects(s *suite.S, p pair, client *http.Client) map[string][]byte {
	s.Helper()
	name := func(i int) string { return fmt.Sprintf("things%d.g%d.many.example.com", i, i%manyGroups) }
	s.Want(client, "POST", p.old.DirectURL()+definitions, definition("g0.many.example.com", "things0", "Thing0"), 201, "")
	eventually(s, time.Minute, "the first CRD is established", func() error {
		a, err := lab.Call(s.Ctx, client, "GET", p.old.DirectURL()+definitions+"/"+name(0), "", nil)
		if err == nil && !strings.Contains(string(a.Body), `"type":"Established"`) {
			err = fmt.Errorf("it is %.300s", a.Body)
		}
		return err
	})
	first := string(s.Want(client, "GET", p.old.DirectURL()+definitions+"/"+name(0), "", 200, "").Body)
	uid := regexp.MustCompile(`"uid":"([0-9a-f]{8})`)
	version := regexp.MustCompile(`"resourceVersion":"[0-9]+",`)
	out := map[string][]byte{}
	for i := 1; i < manyDefinitions; i++ {
		object := strings.NewReplacer("things0.g0.", fmt.Sprintf("things%d.g%d.", i, i%manyGroups), "g0.many", fmt.Sprintf("g%d.many", i%manyGroups),
			"things0", fmt.Sprintf("things%d", i), "thing0", fmt.Sprintf("thing%d", i), "Thing0", fmt.Sprintf("Thing%d", i)).Replace(first)
		object = version.ReplaceAllString(uid.ReplaceAllString(object, fmt.Sprintf(`"uid":"%08x`, i)), "")
		out["/registry/apiextensions.k8s.io/customresourcedefinitions/"+name(i)] = []byte(object)
	}
	return out
}

func manyListed(groups groupList) int {
	n := 0
	for _, g := range groups {
		if strings.HasSuffix(g.Name, ".many.example.com") {
			for _, v := range g.Versions {
				n += len(v.Resources)
			}
		}
	}
	return n
}

// memory is what each xds-server has resident.
func memory(s *suite.S, p pair) []int64 {
	s.Helper()
	var out []int64
	for _, n := range p.nodes {
		var value float64
		for line := range strings.Lines(metrics(s, n.AdminURL)) {
			if rest, ok := strings.CutPrefix(line, "process_resident_memory_bytes "); ok {
				if _, err := fmt.Sscan(rest, &value); err != nil {
					s.Fatal(err)
				}
			}
		}
		if value == 0 {
			s.Errorf("the xds-server of %s does not tell its memory", n.Name)
		}
		out = append(out, int64(value))
	}
	return out
}

func metrics(s *suite.S, url string) string {
	s.Helper()
	return string(s.Want(http.DefaultClient, "GET", url+"/metrics", "", 200, "").Body)
}

// durations are what an xds-server says of how long its work with documents takes.
func durations(s *suite.S, url string) string {
	s.Helper()
	var out []string
	for line := range strings.Lines(metrics(s, url)) {
		name, _, _ := strings.Cut(line, "{")
		if strings.HasPrefix(line, "xds_server_") && strings.Contains(name, "seconds_sum") || strings.Contains(name, "seconds_count") && strings.HasPrefix(line, "xds_server_") {
			out = append(out, strings.TrimSpace(strings.TrimPrefix(line, "xds_server_")))
		}
	}
	return strings.Join(out, ", ")
}
