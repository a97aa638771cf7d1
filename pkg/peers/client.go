package peers

import (
	"fmt"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// ClientConfig makes the configuration to read the cluster's own objects with: from a kubeconfig, or, if path is empty,
// from the pod's service account.
func ClientConfig(path string) (*rest.Config, error) {
	var c *rest.Config
	var err error
	if path == "" {
		c, err = rest.InClusterConfig()
	} else {
		c, err = clientcmd.BuildConfigFromFlags("", path)
	}
	if err != nil {
		if path == "" {
			return nil, fmt.Errorf("endpointSlice.kubeconfig is empty and this is no pod with a service account: %w", err)
		}
		return nil, fmt.Errorf("reading the kubeconfig %s: %w", path, err)
	}
	return rest.AddUserAgent(c, "xds-server"), nil
}
