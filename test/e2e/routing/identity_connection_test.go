package routing

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net/http"
	"testing"
	"time"

	"xds-server/test/e2e/suite"
	"xds-server/test/lab"
	"xds-server/test/plane"
)

// What was found out about a certificate must not outlive its connection, nor the certificate.

func TestASessionThatIsTakenUpAgainIsTheSameUser(t *testing.T) {
	suite.Scenario(t, "10-sessions", "a client that takes up TLS sessions again is the same user each time, in TLS 1.2 and 1.3", func(s *suite.S) {
		w := upgrade(s)
		for _, name := range []string{"carol", ""} {
			credential := lab.Certificate(clientCertificate(s, w.PKI.CA, subject(text(cn, name), text(o, "lab:others"))))
			for _, version := range []uint16{tls.VersionTLS12, tls.VersionTLS13} {
				for _, address := range []string{w.old.Direct, w.old.Front} {
					config := w.TLS(credential)
					config.MaxVersion, config.ClientSessionCache = version, tls.NewLRUClientSessionCache(16)
					x := exchange{s: s, address: address, tls: config, agent: s.Name()}
					for i := range 3 {
						for _, protocol := range protocols {
							got, err := x.one(protocol, whoamiPath, nil)
							if err != nil || got.User.Username != name {
								s.Errorf("%q over %s HTTP/%d at %s, connection %d: %v, %+v", name, tls.VersionName(version), protocol, address, i, err, got)
							}
						}
					}
				}
			}
		}
	})
}

func TestACertificateThatExpiresEndsWithItsTime(t *testing.T) {
	suite.Scenario(t, "10-expiry", "a certificate that expires while its connection lives is refused from then on, as directly", func(s *suite.S) {
		w := upgrade(s)
		end := time.Now().Add(4 * time.Second).Truncate(time.Second)
		template := x509.Certificate{RawSubject: subject(text(cn, "carol")), ExtKeyUsage: forClients, NotAfter: end}
		credential := lab.Certificate(sign(s, w.PKI.CA, template, nil))
		for _, protocol := range protocols {
			a := newAsker(s, w, credential, protocol)
			defer a.close()
			refused := func(server string) error {
				now := time.Now()
				switch got := a.whoAmI(server); {
				case got.Status == http.StatusCreated:
					return fmt.Errorf("still %s at %s", got.User.Username, now)
				case got.Status != http.StatusUnauthorized:
					s.Fatalf("%s answers %+v", server, got)
				case now.Before(end.Add(-time.Second)):
					s.Errorf("%s refuses it at %s, and it is valid until %s", server, now, end)
				}
				return nil
			}
			for _, server := range []string{w.old.FrontURL(), w.old.DirectURL()} {
				if err := plane.Eventually(s.Ctx, "the certificate is refused", func() error { return refused(server) }); err != nil {
					s.Fatal(err)
				}
				if late := time.Since(end); protocol == lab.HTTP1 && server == w.old.FrontURL() && late > 3*time.Second {
					s.Errorf("the front refuses it %s late", late)
				}
			}
		}
	})
}
