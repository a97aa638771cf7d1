// Command xds-server is the control plane of the Envoys in front of kube-apiservers.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	// A second signal ends a stop that takes too long.
	context.AfterFunc(ctx, stop)
	if err := command().ExecuteContext(ctx); err != nil {
		// One line, whatever was joined: it is what systemd and a pod's status show.
		fmt.Fprintln(os.Stderr, "xds-server: "+strings.Join(strings.Fields(strings.ReplaceAll(err.Error(), "\n", "; ")), " "))
		os.Exit(1)
	}
}

func command() *cobra.Command {
	root := &cobra.Command{
		Use:   "xds-server",
		Short: "Mixed-version peer routing for kube-apiservers, through the Envoys in front of them",
		// One line says what is wrong; the usage would hide it.
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	root.AddCommand(serveCommand(), bootstrapCommand(), versionCommand())
	return root
}
