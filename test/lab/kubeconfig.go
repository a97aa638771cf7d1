package lab

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
)

// Kubeconfig writes a kubeconfig file for a URL and a credential, and returns
// its path.
func (l *Lab) Kubeconfig(url string, c Credential) (string, error) {
	type object = map[string]any
	user := object{}
	if c.Token != "" {
		user["token"] = c.Token
	}
	if c.Cert != nil {
		user["client-certificate-data"] = c.Cert.CertPEM()
		user["client-key-data"] = c.Cert.KeyPEM()
	}
	b, err := json.MarshalIndent(object{
		"apiVersion": "v1", "kind": "Config", "current-context": "lab",
		"clusters": []object{{"name": "lab", "cluster": object{"server": url, "certificate-authority-data": l.PKI.CA.CertPEM()}}},
		"users":    []object{{"name": "lab", "user": user}},
		"contexts": []object{{"name": "lab", "context": object{"cluster": "lab", "user": "lab"}}},
	}, "", "  ")
	if err != nil {
		return "", err
	}
	l.mu.Lock()
	l.files++
	path := filepath.Join(l.Dir, fmt.Sprintf("kubeconfig-%d", l.files))
	l.mu.Unlock()
	return path, os.WriteFile(path, b, 0o600)
}

// Kubectl is a kubectl command that the caller runs. Its cache of discovery
// documents is its own, so that commands do not hide changes from each other.
func (l *Lab) Kubectl(ctx context.Context, version, kubeconfig string, args ...string) *exec.Cmd {
	argv := append([]string{"--kubeconfig=" + kubeconfig, "--cache-dir=" + kubeconfig + ".cache"}, args...)
	cmd := exec.CommandContext(ctx, Kubectl(version).Path(), argv...)
	cmd.Env = childEnv()
	return cmd
}
