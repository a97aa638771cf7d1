// Command parts gets what the lab runs into its cache, and says how far it is.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"xds-server/test/lab"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := lab.Parts(ctx, os.Stderr, append(lab.Upgrade(), lab.KubeAPIServer(lab.Kube134), lab.KubeControllerManager(lab.Kube136), lab.Helm, lab.OldDiscovery)...); err != nil {
		fmt.Fprintln(os.Stderr, "lab:", err)
		os.Exit(1)
	}
}
