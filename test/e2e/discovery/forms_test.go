package discovery

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	apidiscoveryv2 "k8s.io/api/apidiscovery/v2"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	"k8s.io/apimachinery/pkg/version"

	"xds-server/test/e2e/suite"
	"xds-server/test/lab"
)

// aggregatedForms is scenario 13.
func aggregatedForms(s *suite.S, p pair) {
	want := union(s, p.world, p.nodes...)
	scheme := runtime.NewScheme()
	if err := apidiscoveryv2.AddToScheme(scheme); err != nil {
		s.Fatal(err)
	}
	for _, protocol := range []lab.Protocol{lab.HTTP1, lab.HTTP2} {
		client := s.Client(p.Lab, p.Token("alice"), protocol) // who may HEAD
		for _, path := range []string{"/apis", "/api"} {
			var first [2]*lab.Answer // by encoding
			for _, n := range p.nodes {
				url := n.FrontURL() + path
				var lists [2]apidiscoveryv2.APIGroupDiscoveryList
				for i, accept := range []string{asJSON + aggregated, asProtobuf + aggregated} {
					a := s.Call(client, "GET", url, "", http.Header{"Accept": {accept}})
					if a.Status != 200 || a.Header.Get(toldBy) != "merged" {
						s.Fatalf("%s of %s as %s answered %d, %s %q: %.200s", path, n.Name, accept, a.Status, toldBy, a.Header.Get(toldBy), a.Body)
					}
					if first[i] == nil {
						first[i] = a
					}
					if got, want := a.Header.Get("ETag"), first[i].Header.Get("ETag"); got != want || strings.HasPrefix(got, "W/") || len(got) < 100 {
						s.Errorf("%s of %s as %s has ETag %s, want strong %s", path, n.Name, accept, got, want)
					}
					if string(a.Body) != string(first[i].Body) {
						s.Errorf("%s as %s differs:%s", path, accept, firstDifference(a.Body, first[i].Body))
					}
					if i == 0 {
						if err := json.Unmarshal(a.Body, &lists[i]); err != nil {
							s.Fatal(err)
						}
					} else if _, _, err := protobuf.NewSerializer(scheme, scheme).Decode(a.Body, nil, &lists[i]); err != nil {
						s.Fatalf("%s of %s as protobuf: %v", path, n.Name, err)
					}
					head := s.Call(client, "HEAD", n.DirectURL()+path, "", http.Header{"Accept": {accept}}).Status
					repeated(s, client, url, accept, a, head)
				}
				if d := cmp.Diff(lists[0].Items, lists[1].Items, cmpopts.EquateEmpty()); d != "" {
					s.Errorf("%s of %s differs between JSON and protobuf:\n%.2000s", path, n.Name, d)
				}
				inOrder(s, lists[0].Items)
			}
		}
		for _, n := range p.nodes {
			if err := want(mustList(s, client, n.FrontURL(), "")); err != nil {
				s.Errorf("the front of %s: %v", n.Name, err)
			}
		}
	}
}

// repeated asks again with what the answer was tagged with, in every way that HTTP knows.
func repeated(s *suite.S, client *http.Client, url, accept string, a *lab.Answer, head int) {
	s.Helper()
	tag := a.Header.Get("ETag")
	for _, c := range []struct {
		header string
		status int
	}{
		{tag, 304}, {"W/" + tag, 304}, {`"other", ` + tag, 304}, {`W/"other",` + tag, 304}, {"*", 304},
		{`"other"`, 200}, {strings.Trim(tag, `"`), 200},
	} {
		b := s.Call(client, "GET", url, "", http.Header{"Accept": {accept}, "If-None-Match": {c.header}})
		if b.Status != c.status || c.status == 304 && len(b.Body) > 0 || b.Header.Get("ETag") != tag {
			s.Errorf("If-None-Match: %.30s at %s as %s answered %d with %d bytes and ETag %.20s, want %d and %.20s", c.header, url, accept, b.Status, len(b.Body), b.Header.Get("ETag"), c.status, tag)
		}
	}
	// A server may refuse HEAD by itself, as it does for /api.
	b := s.Call(client, "HEAD", url, "", http.Header{"Accept": {accept}})
	if b.Status != head || len(b.Body) > 0 || head == 200 && b.Header.Get("ETag") != tag {
		s.Errorf("HEAD of %s as %s answered %d with %d bytes and ETag %.20s, want %d", url, accept, b.Status, len(b.Body), b.Header.Get("ETag"), head)
	}
}

// inOrder wants versions in the order of how stable they are.
func inOrder(s *suite.S, groups []apidiscoveryv2.APIGroupDiscovery) {
	s.Helper()
	for _, g := range groups {
		var versions []string
		for _, v := range g.Versions {
			versions = append(versions, v.Version)
		}
		if !slices.IsSortedFunc(versions, func(a, b string) int { return version.CompareKubeAwareVersionStrings(b, a) }) {
			s.Errorf("the versions of %s are listed as %v", g.Name, versions)
		}
	}
}

// everyForm is scenario 14.
func everyForm(s *suite.S, p pair) {
	docs := settled(s, p.world, p.nodes, "scenario 14", union(s, p.world, p.nodes...))
	client := s.Client(p.Lab, p.Token("bob"), lab.HTTP2)
	groups := mustList(s, client, p.old.FrontURL(), "")

	s.Sub("profile", func(s *suite.S) { profiles(s, p) })
	s.Sub("v2beta1", func(s *suite.S) { betaForms(s, p, docs) })
	s.Sub("legacy", func(s *suite.S) { legacyForms(s, p, docs, groups) })
	s.Sub("OpenAPI", func(s *suite.S) { schemas(s, p) })
	s.Sub("gzip", func(s *suite.S) { compressed(s, p, docs) })
	s.Sub("without fronts", func(s *suite.S) {
		// The safeguard is the front: the servers' own documents are not what it says they are.
		differ := 0
		direct, err := readDocuments(s.Ctx, client, p.updated.DirectURL(), fixedDocuments())
		if err != nil {
			s.Fatal(err)
		}
		other, err := readDocuments(s.Ctx, client, p.old.DirectURL(), fixedDocuments())
		if err != nil {
			s.Fatal(err)
		}
		for d, r := range direct {
			if r.status == 200 && string(r.body) != string(other[d].body) {
				differ++
			}
		}
		if differ < 8 {
			s.Errorf("the servers' own documents differ in %d of %d only: nothing is proved here", differ, len(direct))
		}
	})
}

func profiles(s *suite.S, p pair) {
	client := s.Client(p.Lab, p.Token("bob"), lab.HTTP2)
	for _, n := range p.nodes {
		for _, path := range []string{"/apis", "/api"} {
			for _, accept := range []string{asJSON + aggregated, asProtobuf + aggregated, asYAML + aggregated} {
				own := http.Header{"Accept": {accept + nopeer}}
				direct := s.Call(client, "GET", n.DirectURL()+path, "", own)
				local := s.Call(client, "GET", n.FrontURL()+path, "", own)
				if local.Status != 200 || string(local.Body) != string(direct.Body) || local.Header.Get("ETag") != direct.Header.Get("ETag") {
					s.Errorf("%s with nopeer at the front of %s as %s is not the server's own: %d, %d bytes, want %d", path, n.Name, accept, local.Status, len(local.Body), len(direct.Body))
				}
				if got := local.Header.Get(toldBy); got != "local" {
					s.Errorf("%s with nopeer is told to be %s", path, got)
				}
				merged := s.Call(client, "GET", n.FrontURL()+path, "", http.Header{"Accept": {accept}})
				for _, more := range []string{";profile=any", ";profile=nopeers", "," + asJSON + ";q=0.5"} {
					a := s.Call(client, "GET", n.FrontURL()+path, "", http.Header{"Accept": {accept + more}})
					if string(a.Body) != string(merged.Body) || a.Header.Get(toldBy) != "merged" {
						s.Errorf("%s at the front of %s as %s%s is not the merged document: %d, %d bytes", path, n.Name, accept, more, a.Status, len(a.Body))
					}
				}
				if a := s.Call(client, "GET", n.FrontURL()+path+"?profile=nopeer", "", http.Header{"Accept": {accept}}); string(a.Body) != string(merged.Body) {
					s.Errorf("%s with a query at the front of %s as %s answered %d, %d bytes", path, n.Name, accept, a.Status, len(a.Body))
				}
			}
		}
	}
}

// betaForms is what old clients get: their own form where it is served, else the legacy one, and never half of it.
func betaForms(s *suite.S, p pair, docs documents) {
	for _, path := range []string{"/api", "/apis"} {
		for _, accept := range []string{asJSON + aggregatedBeta, asJSON + aggregatedBeta + "," + asJSON} {
			r := docs[document{path, accept}]
			s.Logf("%s as %s: %s", path, accept, r)
			if r.status != 200 {
				if strings.HasSuffix(accept, ","+asJSON) {
					s.Errorf("%s as %s answered %d", path, accept, r.status)
				}
				continue
			}
			if path == "/apis" && !strings.Contains(string(r.body), strings.SplitN(p.peerOnly, "/", 2)[0]) {
				s.Errorf("%s as %s has no %s", path, accept, p.peerOnly)
			}
			if strings.Contains(r.kind, "v=v2beta1") && strings.Contains(string(r.body), `"responseKind":null`) {
				s.Errorf("%s as %s has a responseKind of null", path, accept)
			}
		}
	}
}

func legacyForms(s *suite.S, p pair, docs documents, groups []apidiscoveryv2.APIGroupDiscovery) {
	var list metav1.APIGroupList
	decode(s, docs[document{"/apis", asJSON}], &list)
	want, got := map[string][]string{}, map[string][]string{}
	for _, g := range groups {
		for _, v := range g.Versions {
			if g.Name != "" {
				want[g.Name] = append(want[g.Name], v.Version)
			}
			var resources metav1.APIResourceList
			path := "/apis/" + g.Name + "/" + v.Version
			if g.Name == "" {
				path = "/api/v1"
			}
			decode(s, docs[document{path, asJSON}], &resources)
			one := []apidiscoveryv2.APIGroupDiscovery{{ObjectMeta: g.ObjectMeta, Versions: []apidiscoveryv2.APIVersionDiscovery{v}}}
			if err := sameClaims(resourceClaims(resources), claims(one)); err != nil {
				s.Errorf("%s: %v", path, err)
			}
		}
	}
	for _, g := range list.Groups {
		for _, v := range g.Versions {
			got[g.Name] = append(got[g.Name], v.Version)
		}
		var group metav1.APIGroup
		decode(s, docs[document{"/apis/" + g.Name, asJSON}], &group)
		if d := cmp.Diff(g.Versions, group.Versions); d != "" || group.PreferredVersion != g.PreferredVersion || g.PreferredVersion != g.Versions[0] {
			s.Errorf("/apis/%s prefers %v, /apis %v:\n%s", g.Name, group.PreferredVersion, g.PreferredVersion, d)
		}
	}
	if d := cmp.Diff(want, got); d != "" {
		s.Errorf("legacy /apis and the aggregated one:\n%s", d)
	}
	storageHashes(s, p, docs)
}

// storageHashes wants every field that a server gives in its legacy documents to be in the front's.
func storageHashes(s *suite.S, p pair, docs documents) {
	client := s.Client(p.Lab, p.Admin(), lab.HTTP2)
	for _, n := range p.nodes {
		for _, g := range mustList(s, client, n.DirectURL(), nopeer) {
			for _, v := range g.Versions {
				path := "/apis/" + g.Name + "/" + v.Version
				if g.Name == "" {
					path = "/api/v1"
				}
				var own, merged metav1.APIResourceList
				decode(s, docs[document{path, asJSON}], &merged)
				a := s.Want(client, "GET", n.DirectURL()+path, "", 200, "")
				if err := json.Unmarshal(a.Body, &own); err != nil {
					s.Fatal(err)
				}
				for _, r := range own.APIResources {
					i := slices.IndexFunc(merged.APIResources, func(m metav1.APIResource) bool { return m.Name == r.Name })
					if i < 0 {
						s.Errorf("%s has no %s", path, r.Name)
						continue
					}
					m := merged.APIResources[i]
					m.Verbs, r.Verbs = nil, nil // united
					if m.StorageVersionHash == "" && r.StorageVersionHash != "" {
						s.Errorf("%s: %s has no storageVersionHash", path, r.Name)
					}
					r.StorageVersionHash, m.StorageVersionHash = "", "" // which need not be the same at all servers
					if d := cmp.Diff(r, m, cmpopts.EquateEmpty()); d != "" {
						s.Errorf("%s: %s is at %s and through the fronts:\n%s", path, r.Name, n.Name, d)
					}
				}
			}
		}
	}
}

func decode(s *suite.S, r reply, into any) {
	s.Helper()
	if err := json.Unmarshal(r.body, into); err != nil {
		s.Errorf("%s: %v: %.200s", r, err, r.body)
	}
}

// compressed asks for gzip, which is for large documents only where a server thinks so.
func compressed(s *suite.S, p pair, docs documents) {
	client := s.Client(p.Lab, p.Token("bob"), lab.HTTP2)
	for _, d := range []document{{"/apis", asJSON + aggregated}, {"/apis", asJSON}, {"/openapi/v2", asJSON}, {"/openapi/v2", openAPIv2Protobuf}, {"/openapi/v3", asJSON}} {
		var tags []string
		for _, n := range p.nodes {
			header := http.Header{"Accept": {d.accept}, "Accept-Encoding": {"gzip"}}
			a := s.Call(client, "GET", n.FrontURL()+d.path, "", header)
			body, err := a.Body, error(nil)
			if encoding := a.Header.Get("Content-Encoding"); encoding == "gzip" {
				body, err = gunzip(body)
			} else if encoding != "" || d.path == "/openapi/v2" {
				s.Errorf("%s with gzip at the front of %s is encoded as %q", d.path, n.Name, encoding)
			}
			if want := docs[d].body; err != nil || string(body) != string(want) {
				s.Errorf("%s with gzip at the front of %s answered %d: %v%s", d.path, n.Name, a.Status, err, firstDifference(body, want))
			}
			tags = append(tags, a.Header.Get("ETag"))
			if tags[0] == "" {
				continue // it has none otherwise either
			}
			header.Set("If-None-Match", tags[0])
			if b := s.Call(client, "GET", n.FrontURL()+d.path, "", header); b.Status != 304 {
				s.Errorf("%s with gzip and its ETag answered %d", d.path, b.Status)
			}
		}
		if len(slices.Compact(tags)) != 1 || tags[0] == "" && docs[d].etag != "" {
			s.Errorf("%s with gzip has ETags %v", d.path, tags)
		}
	}
}

// refused is scenario 22.
func refused(s *suite.S, p pair) {
	stranger, err := lab.NewCA("stranger")
	if err != nil {
		s.Fatal(err)
	}
	foreign, err := stranger.IssueClient("carol", "system:masters")
	if err != nil {
		s.Fatal(err)
	}
	impersonating := func(c lab.Credential, user string) lab.Credential {
		c.Header = http.Header{"Impersonate-User": {user}}
		return c
	}
	list := append(fixedDocuments(), versionDocuments(mustList(s, s.Client(p.Lab, p.Token("bob"), lab.HTTP2), p.old.FrontURL(), ""))...)
	list = append(list, document{"/openapi/v3/apis/" + strings.TrimPrefix(p.path[:strings.LastIndex(p.path, "/")], "/apis/"), asJSON}, document{"/openapi/v3/api/v1", asJSON})
	peerOnly, translated := p.path[strings.LastIndex(p.path, "/")+1:], 0
	for name, c := range map[string]struct {
		lab.Credential
		status int
	}{
		"anonymous":                     {lab.Anonymous, 403},
		"bad token":                     {lab.Credential{Token: "no such token"}, 401},
		"foreign certificate":           {lab.Certificate(foreign), 401},
		"impersonating the anonymous":   {impersonating(p.Admin(), "system:anonymous"), 403},
		"impersonating without a right": {impersonating(p.Token("nobody"), "admin"), 403},
	} {
		client := s.Client(p.Lab, c.Credential, lab.HTTP2)
		for _, n := range p.nodes {
			direct, err := readDocuments(s.Ctx, client, n.DirectURL(), list)
			if err != nil {
				s.Fatal(err)
			}
			front, err := readDocuments(s.Ctx, client, n.FrontURL(), list)
			if err != nil {
				s.Fatal(err)
			}
			for d, r := range front {
				if r.status != c.status || strings.Contains(string(r.body), peerOnly) || r.etag != "" {
					s.Errorf("%s: %s as %s at the front of %s answered %d, want %d: %.200s", name, d.path, d.accept, n.Name, r.status, c.status, r.body)
				}
				own := direct[d]
				if own.status == r.status && own.kind == r.kind && string(own.body) == string(r.body) {
					continue
				}
				// A server puts some refusals into the media type that was asked for, and the front asks for its own.
				var got, want metav1.Status
				decode(s, r, &got)
				decode(s, direct[document{d.path, asJSON}], &want)
				if got.Message != want.Message || got.Reason != want.Reason || got.Code != want.Code || got.Kind != "Status" {
					s.Errorf("%s: %s as %s at the front of %s: %s, want the server's own %s: %.200s", name, d.path, d.accept, n.Name, r, own, r.body)
				}
				translated++
			}
		}
	}
	// The same documents are there for who may read them.
	docs, err := readDocuments(s.Ctx, s.Client(p.Lab, p.Token("nobody"), lab.HTTP1), p.old.FrontURL(), list)
	if err != nil {
		s.Fatal(err)
	}
	if err := docs.whole(); err != nil {
		s.Error(err)
	}
	fmt.Printf("       %d documents refused to 5 kinds of user, %d of the refusals in another media type than the server's own\n", len(list), translated)
}
