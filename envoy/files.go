package envoy

import (
	"fmt"
	"os"
	"path/filepath"
	"time"

	"xds-server/pkg/config"
)

// CheckFiles refuses certificates, keys and authorities with which the front could not work, or would not be safe.
func (o Options) CheckFiles(now time.Time) error {
	for flag, file := range map[string]string{
		"client-ca-file": o.ClientCAFile, "server-ca-file": o.ServerCAFile, "requestheader-client-ca-file": o.FrontProxyCAFile,
	} {
		if _, err := config.ReadCAFile(file, now); err != nil {
			return fmt.Errorf("--%s: %w", flag, err)
		}
	}
	if _, err := config.ReadKeyPair(o.ServingCertFile, o.ServingKeyFile, now); err != nil {
		return fmt.Errorf("--serving-cert-file, --serving-key-file: %w", err)
	}
	if _, err := config.ReadKeyPair(o.FrontProxyCertFile, o.FrontProxyKeyFile, now); err != nil {
		return fmt.Errorf("--proxy-client-cert-file, --proxy-client-key-file: %w", err)
	}
	return config.DistinctCAs(o.FrontProxyCAFile, o.ClientCAFile)
}

// WriteSecrets writes the SDS files into SecretsDir, which it makes if need be.
func WriteSecrets(o Options) error {
	secrets, err := Secrets(o)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(o.SecretsDir, 0o755); err != nil {
		return fmt.Errorf("--secrets-dir: %w", err)
	}
	for name, content := range secrets {
		if err := os.WriteFile(filepath.Join(o.SecretsDir, name), content, 0o644); err != nil {
			return fmt.Errorf("--secrets-dir: writing the SDS files: %w", err)
		}
	}
	return nil
}
