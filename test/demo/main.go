// Command demo runs a real control plane in the middle of an upgrade: etcd, kube-apiserver 1.36 and 1.37, an Envoy in
// front of each and an xds-server beside each, and shows what a client of the old server's front sees.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"time"

	"xds-server/test/lab"
	"xds-server/test/plane"
)

func main() {
	once := flag.Bool("once", false, "show everything and stop; exit code 0 only if every answer was right")
	flag.Parse()
	parts := lab.Upgrade()
	os.Exit(lab.Run(func(ctx context.Context) error { return demo(ctx, *once) }, parts...))
}

// The nodes' names say what they are.
const (
	oldNode = "old"
	newNode = "new"
)

func demo(ctx context.Context, once bool) error {
	begin := time.Now()
	l, err := lab.New(lab.Config{Nodes: []lab.NodeConfig{
		{Name: oldNode, Version: lab.Kube136}, {Name: newNode, Version: lab.Kube137},
	}})
	if err != nil {
		return err
	}
	fmt.Printf("Starting etcd, kube-apiserver %s (%s) and %s (%s) ...\n", lab.Kube136, oldNode, lab.Kube137, newNode)
	starting, cancel := context.WithTimeout(ctx, lab.StartTimeout)
	defer cancel()
	if err := l.Start(starting); err != nil {
		return err
	}
	fmt.Printf("Starting an Envoy and an xds-server on each node ...\n")
	p, err := plane.Start(starting, l, plane.Options{Failover: true})
	if err != nil {
		return err
	}
	fmt.Printf("Up after %.1f s.\n\n", time.Since(begin).Seconds())

	wrong := show(ctx, l, p)
	if once || ctx.Err() != nil {
		if wrong > 0 {
			return fmt.Errorf("%d answers were not what they should be", wrong)
		}
		return ctx.Err()
	}
	if err := explain(l, p); err != nil {
		return err
	}
	<-ctx.Done()
	fmt.Println("\nStopping everything.")
	return nil
}
