package lab

import (
	"context"
	_ "embed"
	"os/exec"
	"path/filepath"
)

// Clients of a cluster beside kubectl.
var (
	Helm = Part{"helm", helmVersion, getHelm}
	// OldDiscovery prints what a cluster serves as the first client-go does that knows aggregated discovery.
	OldDiscovery = Part{"olddiscovery", oldClientVersion, getOldDiscovery}
)

func getHelm(ctx context.Context, p Part, file string) error {
	return buildModule(ctx, file, module{path: "helm.sh/helm/v4", version: "v" + p.Version, pkg: "/cmd/helm"})
}

//go:embed testdata/olddiscovery/main.go
var oldDiscovery string

func getOldDiscovery(ctx context.Context, p Part, file string) error {
	return buildModule(ctx, file, module{path: "k8s.io/client-go", version: "v" + p.Version, source: oldDiscovery})
}

// ClientCommand is a part that the caller runs with a kubeconfig. Whatever it keeps lies beside the kubeconfig.
func (l *Lab) ClientCommand(ctx context.Context, p Part, kubeconfig string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, p.Path(), args...)
	cmd.Dir = filepath.Dir(kubeconfig)
	cmd.Env = append(childEnv(), "KUBECONFIG="+kubeconfig, "KUBECACHEDIR="+kubeconfig+".cache",
		"HELM_CACHE_HOME="+kubeconfig+".helm", "HELM_CONFIG_HOME="+kubeconfig+".helm", "HELM_DATA_HOME="+kubeconfig+".helm")
	return cmd
}
