package main

import (
	"encoding/json"
	"fmt"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"
)

// version is stamped by the linker; a plain build tells what Go knows of the module.
var version = ""

// versionInfo is what `version -o json` prints.
type versionInfo struct {
	Version  string `json:"version"`
	Revision string `json:"revision,omitempty"`
	Go       string `json:"go"`
	Platform string `json:"platform"`
}

func currentVersion() versionInfo {
	v := versionInfo{Version: version, Go: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH}
	if info, ok := debug.ReadBuildInfo(); ok {
		if v.Version == "" {
			v.Version = info.Main.Version
		}
		for _, s := range info.Settings {
			if s.Key == "vcs.revision" {
				v.Revision = s.Value
			}
		}
	}
	return v
}

func versionCommand() *cobra.Command {
	output := ""
	cmd := &cobra.Command{
		Use:   "version",
		Short: "Print the version",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			v := currentVersion()
			switch output {
			case "":
				_, err := fmt.Fprintf(cmd.OutOrStdout(), "xds-server %s (%s, %s)\n", v.Version, v.Go, v.Platform)
				return err
			case "json":
				return json.NewEncoder(cmd.OutOrStdout()).Encode(v)
			default:
				return fmt.Errorf("--output %q: must be json or empty", output)
			}
		},
	}
	cmd.Flags().StringVarP(&output, "output", "o", "", "json, or empty for one line of text")
	return cmd
}
