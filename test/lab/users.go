package lab

import (
	"context"
	"crypto/rand"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"

	"sigs.k8s.io/yaml"

	"xds-server/deploy"
)

// The lab's users with static tokens: name, uid, groups.
var users = []struct{ name, uid, groups string }{
	{"admin", "uid-admin", "system:masters"},
	{"alice", "uid-alice", "lab:admins"},
	{"bob", "uid-bob", "lab:readers,lab:others"},
	{"nobody", "uid-nobody", ""},
}

func (l *Lab) tokenFile() string { return filepath.Join(l.Dir, "tokens.csv") }

func (l *Lab) writeTokens() error {
	l.tokens = map[string]string{}
	var file strings.Builder
	for _, u := range users {
		l.tokens[u.name] = rand.Text()
		fmt.Fprintf(&file, "%s,%s,%s,%q\n", l.tokens[u.name], u.name, u.uid, u.groups)
	}
	return os.WriteFile(l.tokenFile(), []byte(file.String()), 0o600)
}

// Token is the static token of a user: admin (system:masters), alice (may do
// everything by RBAC), bob (may read), nobody (may nothing).
func (l *Lab) Token(user string) Credential {
	t, ok := l.tokens[user]
	if !ok {
		panic("lab: no user is called " + user)
	}
	return Credential{Token: t}
}

// Admin is the credential of system:masters.
func (l *Lab) Admin() Credential { return l.Token("admin") }

// rbac is what kubeadm and the tests need. What xds-server may is in
// deploy/rbac.yaml, which the lab applies as it is.
const rbac = `
/clusterrolebindings/kubeadm:cluster-admins
{"roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"ClusterRole","name":"cluster-admin"},"subjects":[{"apiGroup":"rbac.authorization.k8s.io","kind":"Group","name":"kubeadm:cluster-admins"}]}
/clusterrolebindings/lab:admins
{"roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"ClusterRole","name":"cluster-admin"},"subjects":[{"apiGroup":"rbac.authorization.k8s.io","kind":"Group","name":"lab:admins"}]}
/clusterroles/lab:readers
{"rules":[{"apiGroups":["*"],"resources":["*"],"verbs":["get","list","watch"]}]}
/clusterrolebindings/lab:readers
{"roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"ClusterRole","name":"lab:readers"},"subjects":[{"apiGroup":"rbac.authorization.k8s.io","kind":"Group","name":"lab:readers"}]}
`

func (l *Lab) applyRBAC(ctx context.Context, n *Node) error {
	const api = "/apis/rbac.authorization.k8s.io/v1"
	kinds := map[string]string{"clusterroles": "ClusterRole", "clusterrolebindings": "ClusterRoleBinding"}
	client := l.Client(l.Admin(), HTTP2)
	lines := strings.Split(strings.TrimSpace(rbac), "\n")
	for i := 0; i < len(lines); i += 2 {
		path, object := lines[i], lines[i+1]
		segments := strings.Split(path, "/")
		kind, name := kinds[segments[len(segments)-2]], segments[len(segments)-1]
		body := fmt.Sprintf(`{"apiVersion":"rbac.authorization.k8s.io/v1","kind":%q,"metadata":{"name":%q},`, kind, name) + object[1:]
		if err := l.apply(ctx, client, n.DirectURL()+api+path, body); err != nil {
			return fmt.Errorf("applying %s: %w", path, err)
		}
	}
	for _, document := range strings.Split(deploy.RBAC, "\n---\n") {
		var object struct {
			Kind     string
			Metadata struct{ Name, Namespace string }
		}
		if err := yaml.Unmarshal([]byte(document), &object); err != nil {
			return fmt.Errorf("reading deploy/rbac.yaml: %w", err)
		}
		path := fmt.Sprintf("/namespaces/%s/%ss/%s", object.Metadata.Namespace, strings.ToLower(object.Kind), object.Metadata.Name)
		if err := l.apply(ctx, client, n.DirectURL()+api+path, document); err != nil {
			return fmt.Errorf("applying %s of deploy/rbac.yaml: %w", path, err)
		}
	}
	return nil
}

// apply creates an object, or makes it look as given.
func (l *Lab) apply(ctx context.Context, c *http.Client, url, object string) error {
	a, err := Call(ctx, c, http.MethodPatch, url+"?fieldManager=lab&force=true", object,
		http.Header{"Content-Type": {"application/apply-patch+yaml"}})
	if err != nil {
		return err
	}
	if a.Status != http.StatusOK && a.Status != http.StatusCreated {
		return fmt.Errorf("answered %d: %s", a.Status, a.Body)
	}
	return nil
}
