package routing

import (
	"encoding/json"
	"fmt"
	"net/http"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"xds-server/test/e2e/suite"
	"xds-server/test/lab"
)

var protocols = []lab.Protocol{lab.HTTP1, lab.HTTP2}

func TestEveryCredentialIsTheSameUserThroughTheFront(t *testing.T) {
	suite.Scenario(t, "10", "every kind of credential is the same user, or the same refusal, through the front as directly", func(s *suite.S) {
		w := upgrade(s)
		users := map[string]bool{}
		for _, c := range allCredentials(s, w) {
			for _, protocol := range protocols {
				a := newAsker(s, w, c.Credential, protocol)
				direct, front := a.whoAmI(w.old.DirectURL()), a.whoAmI(w.old.FrontURL())
				if diff := c.diff(direct, front); diff != "" {
					s.Errorf("%s over HTTP/%d: directly (-) is not through the front (+):\n%s", c.name, protocol, diff)
				}
				users[direct.User.Username] = true
				a.close()
			}
		}
		// A table whose every row is a refusal would prove nothing.
		if len(users) < 20 {
			s.Errorf("only %d different users in the table", len(users))
		}
	})
}

func TestEveryCredentialIsTheSameUserAtThePeer(t *testing.T) {
	suite.Scenario(t, "10-proxied", "every kind of credential is the same user, or the same refusal, at the peer as directly there", func(s *suite.S) {
		w := upgrade(s)
		sameAtThePeer(s, w, allCredentials(s, w))
	})
}

// sameAtThePeer asks for a peer-only API through the old front and at the peer itself, and compares the answers and what
// the peer's audit log says of the two.
func sameAtThePeer(s *suite.S, w world, credentials []namedCredential) {
	s.Helper()
	type pair struct {
		name, agent, byFront string
	}
	var pairs, refused []pair
	var agents []string
	for i, c := range credentials {
		for _, protocol := range protocols {
			agent := fmt.Sprintf("%s %d HTTP/%d", s.Name(), i, protocol)
			p := pair{fmt.Sprintf("%s over HTTP/%d", c.name, protocol), agent + " directly", agent + " by the front"}
			a := newAsker(s, w, c.Credential, protocol)
			direct := a.ask("GET", w.updated.DirectURL()+migrations, "", p.agent)
			front := a.ask("GET", w.old.FrontURL()+migrations, "", p.byFront)
			a.close()
			if diff := c.diff(direct, front); diff != "" {
				s.Errorf("%s: the answer directly (-) is not the one through the front (+):\n%s", p.name, diff)
				continue
			}
			if direct.Status != http.StatusUnauthorized && c.stricter == "" { // of a refused handshake nothing is logged
				agents = append(agents, p.agent, p.byFront)
				pairs = append(pairs, p)
			} else {
				refused = append(refused, p)
			}
		}
	}
	log := auditByAgent(s, w.updated.Node, agents...)
	type users struct{ User, Impersonated any }
	for _, p := range pairs {
		want, got := log[p.agent], log[p.byFront]
		if diff := cmp.Diff(users{want.User, want.ImpersonatedUser}, users{got.User, got.ImpersonatedUser}); diff != "" {
			s.Errorf("%s: the user directly at the peer (-) is not the one through the front (+):\n%s", p.name, diff)
		}
	}
	for _, p := range refused {
		if e := log[p.byFront]; e.User.Username != "" || e.ImpersonatedUser != nil {
			s.Errorf("%s: refused, and yet the peer took it for %+v %+v", p.name, e.User, e.ImpersonatedUser)
		}
	}
}

// Directly these are users. No header can carry them unchanged, and a name that is nearly right may be another user's.
func TestAnIdentityThatNoHeaderCarriesIsRefusedWithTheReason(t *testing.T) {
	suite.Scenario(t, "10-uncarried", "an identity that no header can carry is 401, and the message says why", func(s *suite.S) {
		w := upgrade(s)
		for _, c := range uncarriedSubjects {
			credential := lab.Certificate(clientCertificate(s, w.PKI.CA, c.subject))
			for _, protocol := range protocols {
				a := newAsker(s, w, credential, protocol)
				for _, path := range []string{"/version", migrations} {
					answer := s.Want(a.client, "GET", w.old.FrontURL()+path, "", http.StatusUnauthorized, c.why)
					var status metav1.Status
					if err := json.Unmarshal(answer.Body, &status); err != nil || status.Kind != "Status" || status.Reason != metav1.StatusReasonUnauthorized {
						s.Errorf("%s: the answer is no Status with reason Unauthorized: %s", c.why, answer.Body)
					}
				}
				// The refusal is not for want of a user.
				if direct := a.whoAmI(w.old.DirectURL()); direct.Status != http.StatusCreated {
					s.Errorf("%s: directly the answer is %+v", c.why, direct)
				}
				a.close()
			}
		}
	})
}
