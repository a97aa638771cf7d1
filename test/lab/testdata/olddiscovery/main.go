// Command olddiscovery asks a cluster what it serves the way that old clients do, and prints every kind.
package main

import (
	"fmt"
	"os"

	"k8s.io/client-go/discovery"
	"k8s.io/client-go/tools/clientcmd"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run() error {
	config, err := clientcmd.BuildConfigFromFlags("", os.Getenv("KUBECONFIG"))
	if err != nil {
		return err
	}
	client, err := discovery.NewDiscoveryClientForConfig(config)
	if err != nil {
		return err
	}
	_, resources, err := client.ServerGroupsAndResources()
	if err != nil {
		return err
	}
	for _, list := range resources {
		for _, r := range list.APIResources {
			fmt.Println(list.GroupVersion, r.Name, r.Kind)
		}
	}
	return nil
}
