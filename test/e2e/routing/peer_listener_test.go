package routing

import (
	"crypto/x509"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"xds-server/test/e2e/suite"
	"xds-server/test/lab"
	"xds-server/test/plane"
)

// The server names by which the peer listener tells xds-servers from Envoys.
const (
	forEnvoys     = "kubernetes.default.svc"
	forXDSServers = "xds-server.kubernetes.default.svc"
)

func TestThePeerListenerIsForPeersOnly(t *testing.T) {
	suite.Scenario(t, "peer-listener", "at the peer listener nobody but a peer's Envoy or an xds-server gets in, and the latter gains nothing", func(s *suite.S) {
		w := upgrade(s)
		for _, c := range callers(s, w) {
			x := atPeerListener(s, w, w.updated, c.server, c.pair)
			for _, protocol := range protocols {
				// The user in the headers is one that may do this, were the certificate believed.
				got, err := x.one(protocol, whoamiPath, forged)
				if err == nil && got.Status != http.StatusUnauthorized && got.Status != http.StatusForbidden {
					s.Errorf("%s (server name %q) over HTTP/%d got in: %+v", c.name, c.server, protocol, got)
				}
				if err == nil && c.closed {
					s.Errorf("%s (server name %q) over HTTP/%d was answered, if only %d", c.name, c.server, protocol, got.Status)
				}
			}
		}
		// Those that may are let in, so that nobody was refused for another reason.
		envoy := atPeerListener(s, w, w.updated, forEnvoys, clientCertificate(s, w.PKI.FrontProxyCA, subject(text(cn, "front-proxy-client"))))
		reader := atPeerListener(s, w, w.updated, forXDSServers, clientCertificate(s, w.PKI.CA, subject(text(cn, lab.XDSServerUser))))
		for _, protocol := range protocols {
			got, err := envoy.one(protocol, whoamiPath, []field{{"X-Remote-User", "erin"}, {"X-Remote-Group", "lab:readers"}, {"X-Remote-Group", "system:authenticated"}})
			if err != nil || got.User.Username != "erin" {
				s.Errorf("an Envoy over HTTP/%d is not let in: %v, %+v", protocol, err, got)
			}
			clean, err := reader.one(protocol, whoamiPath, nil)
			if err != nil || clean.User.Username != lab.XDSServerUser {
				s.Errorf("an xds-server over HTTP/%d is not let in: %v, %+v", protocol, err, clean)
			}
			for _, f := range forgeries {
				got, err := reader.one(protocol, whoamiPath, f.fields)
				if diff := clean.diff(got); err != nil || diff != "" {
					s.Errorf("an xds-server with headers %s over HTTP/%d: %v, without (-) and with them (+)\n%s", f.name, protocol, err, diff)
				}
			}
			// What it may do is what its own user may: it impersonates nobody.
			got, err = reader.one(protocol, whoamiPath, []field{{"Impersonate-User", "admin"}, {"Impersonate-Group", "system:masters"}})
			if err != nil || got.Status != http.StatusForbidden {
				s.Errorf("an xds-server impersonates over HTTP/%d: %v, %+v", protocol, err, got)
			}
		}
		for _, n := range []*plane.Node{w.old, w.updated} {
			for _, e := range intruders(s, w, n) {
				s.Errorf("%s took %q, %s %s, for %+v", n.Name, e.UserAgent, e.Verb, e.RequestURI, e.User)
			}
		}
	})
}

// A caller is someone with a certificate, or none, and the server name that he asks for. If closed, he may not even get
// an answer.
type caller struct {
	name, server string
	pair         *lab.Pair
	closed       bool
}

func callers(s *suite.S, w world) (all []caller) {
	s.Helper()
	front, cluster := w.PKI.FrontProxyCA, w.PKI.CA
	const envoy, reader = "front-proxy-client", lab.XDSServerUser
	other := map[*lab.Pair]*lab.Pair{}
	for _, ca := range []*lab.Pair{front, cluster} {
		foreign, err := lab.NewCA(ca.Cert.Subject.CommonName)
		if err != nil {
			s.Fatal(err)
		}
		other[ca] = foreign
	}
	for _, server := range []string{forEnvoys, forXDSServers, ""} {
		ca, wrong, name := front, cluster, envoy
		if server == forXDSServers {
			ca, wrong, name = cluster, front, reader
		}
		add := func(what string, p *lab.Pair) { all = append(all, caller{what, server, p, true}) }
		add("nobody", nil)
		add("the right name of the wrong authority", clientCertificate(s, wrong, subject(text(cn, name))))
		add("the wrong name of the wrong authority", clientCertificate(s, wrong, subject(text(cn, intruder), text(o, "system:masters"))))
		add("the right name of a foreign authority of the same name", clientCertificate(s, other[ca], subject(text(cn, name))))
		expired := x509.Certificate{RawSubject: subject(text(cn, name)), ExtKeyUsage: forClients, NotAfter: time.Now().Add(-time.Minute)}
		add("the right name, expired", sign(s, ca, expired, nil))
		servers := x509.Certificate{RawSubject: subject(text(cn, name)), ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}}
		add("the right name, for servers", sign(s, ca, servers, nil))
		// Names that are not the right one, however like it they are written.
		for what, der := range map[string][]byte{
			"another name":                     subject(text(cn, intruder)),
			"no name":                          subject(text(o, "lab:others")),
			"a longer name":                    subject(text(cn, name+"2")),
			"a name with more before it":       subject(text(cn, "x"+name)),
			"a name with a blank":              subject(text(cn, name+" ")),
			"a name in capitals":               subject(text(cn, strings.ToUpper(name))),
			"a name that ends at NUL":          subject(text(cn, name+"\x00x")),
			"a name behind a line feed":        subject(text(cn, "x\n"+name)),
			"the name before a line feed":      subject(text(cn, name+"\nx")),
			"a name as it is written":          subject(text(cn, "CN="+name)),
			"a name in a name":                 subject(text(cn, "x,CN="+name)),
			"a name in a name, with a slash":   subject(text(cn, `x\,CN=`+name)),
			"a name in a name, with slashes":   subject(text(cn, `x\\,CN=`+name+`,`)),
			"a name in a name, with a plus":    subject(text(cn, "x+CN="+name)),
			"a name and more in a name":        subject(text(cn, name+",CN=x")),
			"the name as an organization":      subject(text(cn, intruder), text(o, name)),
			"the name in an organization":      subject(text(cn, intruder), text(o, "x,CN="+name)),
			"the name in an organization, two": subject(text(o, "CN="+name), text(cn, intruder)),
			"the name as a unit":               subject(text(cn, intruder), text(ou, "CN="+name)),
			"the name before another":          subject(text(cn, name), text(cn, intruder)),
			"the name before an empty one":     subject(text(cn, name), text(cn, "")),
		} {
			add(what, clientCertificate(s, ca, der))
		}
		for what, change := range map[string]func(t *x509.Certificate){
			"the name as a DNS name": func(t *x509.Certificate) { t.DNSNames = []string{name} },
			"the name in a DNS name": func(t *x509.Certificate) { t.DNSNames = []string{"x,CN=" + name} },
			"the name as a URI":      func(t *x509.Certificate) { t.URIs = []*url.URL{{Opaque: name}} },
			"the name as an e-mail":  func(t *x509.Certificate) { t.EmailAddresses = []string{name} },
		} {
			template := x509.Certificate{RawSubject: subject(text(cn, intruder)), ExtKeyUsage: forClients}
			change(&template)
			add(what, sign(s, ca, template, nil))
		}
	}
	return all
}

// atPeerListener speaks to a node's peer listener with a certificate or none.
func atPeerListener(s *suite.S, w world, n *plane.Node, server string, p *lab.Pair) exchange {
	config := w.TLS(lab.Credential{Cert: p})
	config.ServerName = server
	// The listener's certificate is an apiserver's, whatever name is asked for; it is not what is tried here.
	config.InsecureSkipVerify = true
	return exchange{s: s, address: n.Peer, tls: config, agent: "smuggler at the peer listener"}
}
