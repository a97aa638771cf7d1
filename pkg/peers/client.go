package peers

import (
	"crypto/x509"
	"encoding/pem"
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
	if err := checkReader(c); err != nil {
		return nil, fmt.Errorf("the kubeconfig %s: %w", path, err)
	}
	return rest.AddUserAgent(c, "xds-server"), nil
}

// checkReader refuses what would make xds-server more than a reader: an administrator's certificate, or impersonation.
func checkReader(c *rest.Config) error {
	if c.Impersonate.UserName != "" {
		return fmt.Errorf("it acts as %q; xds-server reads as its own user", c.Impersonate.UserName)
	}
	if err := rest.LoadTLSFiles(c); err != nil {
		return err
	}
	block, _ := pem.Decode(c.CertData)
	if block == nil {
		return nil // a token, whose user nobody can tell from here
	}
	cert, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		return fmt.Errorf("its client certificate: %w", err)
	}
	if len(cert.Subject.Organization) > 0 {
		return fmt.Errorf("its client certificate is of group %q; give xds-server one of its own, with a name and no group", cert.Subject.Organization[0])
	}
	return nil
}
