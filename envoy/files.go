package envoy

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"time"

	"xds-server/pkg/config"
)

// CheckFiles refuses certificates, keys and authorities with which the front could not work, or would not be safe.
func (o Options) CheckFiles(now time.Time) error {
	for _, f := range []struct{ flag, file string }{
		{"client-ca-file", o.ClientCAFile}, {"server-ca-file", o.ServerCAFile}, {"requestheader-client-ca-file", o.FrontProxyCAFile},
	} {
		if _, err := config.ReadCAFile(f.file, now); err != nil {
			return fmt.Errorf("--%s: %w", f.flag, err)
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
	for _, name := range slices.Sorted(maps.Keys(secrets)) {
		// Written aside and moved, since an Envoy may be reading them.
		file := filepath.Join(o.SecretsDir, name)
		if err := os.WriteFile(file+".new", secrets[name], 0o644); err != nil {
			return fmt.Errorf("--secrets-dir: writing the SDS files: %w", err)
		}
		if err := os.Rename(file+".new", file); err != nil {
			return fmt.Errorf("--secrets-dir: writing the SDS files: %w", err)
		}
	}
	return nil
}
