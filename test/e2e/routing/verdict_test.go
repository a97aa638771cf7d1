package routing

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/google/go-cmp/cmp"
	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	auditv1 "k8s.io/apiserver/pkg/apis/audit/v1"

	"xds-server/test/e2e/suite"
	"xds-server/test/lab"
)

// A SelfSubjectReview, by which a server says whom it takes a client for.
const (
	whoamiPath = "/apis/authentication.k8s.io/v1/selfsubjectreviews"
	whoamiBody = `{"apiVersion":"authentication.k8s.io/v1","kind":"SelfSubjectReview"}`
)

// A verdict is what a server makes of a credential.
type verdict struct {
	Status  int
	Reason  metav1.StatusReason
	Message string
	User    authenticationv1.UserInfo
	// Handshake is the TLS alert, if not even that was accepted.
	Handshake string
}

// diff is empty if the front's verdict is as good as the server's own. A handshake that the server refuses is a refusal
// like a 401, and a 401's words are not compared.
func (v verdict) diff(front verdict) string {
	if v.Handshake != "" {
		v.Handshake, front.Handshake = "", ""
	}
	if v.Status == http.StatusUnauthorized {
		v.Message, front.Message = "", ""
	}
	return cmp.Diff(v, front)
}

// judge reads an answer to a SelfSubjectReview, or a refusal of any request.
func judge(code int, body []byte) verdict {
	v := verdict{Status: code}
	switch {
	case code == http.StatusCreated:
		var own authenticationv1.SelfSubjectReview
		if err := json.Unmarshal(body, &own); err != nil {
			v.Message = string(body)
		}
		v.User = own.Status.UserInfo
	case code >= 400:
		var status metav1.Status
		if err := json.Unmarshal(body, &status); err != nil {
			status.Message = string(body)
		}
		v.Reason, v.Message = status.Reason, status.Message
	}
	return v
}

// An asker asks with one credential over one protocol.
type asker struct {
	s          *suite.S
	w          world
	credential lab.Credential
	client     *http.Client
}

func newAsker(s *suite.S, w world, c lab.Credential, p lab.Protocol) asker {
	return asker{s, w, c, s.Client(w.Lab, c, p)}
}

func (a asker) close() { a.client.CloseIdleConnections() }

// whoAmI asks a server or a front for its own word on the credential.
func (a asker) whoAmI(server string) verdict {
	a.s.Helper()
	return a.ask("POST", server+whoamiPath, whoamiBody, a.s.Name())
}

// ask makes one request. A refused handshake is a verdict too; every other failure ends the scenario.
func (a asker) ask(method, address, body, agent string) verdict {
	a.s.Helper()
	header := http.Header{"User-Agent": {agent}, "Content-Type": {"application/json"}}
	answer, err := lab.Call(a.s.Ctx, a.client, method, address, body, header)
	if err != nil {
		alert, alertErr := a.alert(address)
		if alertErr != nil {
			a.s.Fatalf("%s %s: %v (and the handshake alone: %v)", method, address, err, alertErr)
		}
		return verdict{Status: http.StatusUnauthorized, Reason: metav1.StatusReasonUnauthorized, Handshake: alert}
	}
	return judge(answer.Status, answer.Body)
}

// alert shakes hands and says nothing more, so that the server's alert is not lost in a connection's reset.
func (a asker) alert(address string) (string, error) {
	u, err := url.Parse(address)
	if err != nil {
		return "", err
	}
	ctx, cancel := context.WithTimeout(a.s.Ctx, 5*time.Second)
	defer cancel()
	a.s.Count(1)
	conn, err := (&tls.Dialer{Config: a.w.TLS(a.credential)}).DialContext(ctx, "tcp", u.Host)
	if err == nil {
		defer conn.Close()
		deadline, _ := ctx.Deadline()
		if err := conn.SetReadDeadline(deadline); err != nil {
			return "", err
		}
		_, err = conn.Read(make([]byte, 1))
	}
	if err == nil {
		return "", errors.New("the server spoke first")
	}
	if !strings.Contains(err.Error(), "remote error: tls:") && !strings.Contains(err.Error(), "tls: peer doesn't support") {
		return "", fmt.Errorf("no alert: %w", err)
	}
	return err.Error(), nil
}

// auditByAgent is what a server has logged, by user agent, once the requests of these agents are in it.
func auditByAgent(s *suite.S, n *lab.Node, agents ...string) map[string]auditv1.Event {
	s.Helper()
	ctx, cancel := context.WithTimeout(s.Ctx, 20*time.Second)
	defer cancel()
	for {
		events, err := n.Audit()
		if err != nil {
			s.Fatal(err)
		}
		log := map[string]auditv1.Event{}
		for _, e := range events {
			log[e.UserAgent] = e
		}
		missing := ""
		for _, agent := range agents {
			if _, ok := log[agent]; !ok {
				missing = agent
				break
			}
		}
		if missing == "" {
			return log
		}
		// A server logs a request just after it has answered it.
		select {
		case <-ctx.Done():
			s.Fatalf("%s has logged nothing of %q", n.Name, missing)
		case <-time.After(50 * time.Millisecond):
		}
	}
}
