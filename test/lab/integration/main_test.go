// Package integration proves on real processes what package lab promises.
package integration

import (
	"context"
	"fmt"
	"os"
	"testing"

	"xds-server/test/lab"
)

// programVariable turns this test binary into a program that holds a lab open
// until it is told to end.
const programVariable = "XDS_LAB_TEST_PROGRAM"

func TestMain(m *testing.M) {
	if os.Getenv(programVariable) != "" {
		os.Exit(lab.Run(holdOpen, lab.Etcd))
	}
	lab.Main(m, lab.Etcd, lab.KubeAPIServer(lab.Kube134), lab.KubeAPIServer(lab.Kube136), lab.KubeAPIServer(lab.Kube137),
		lab.Kubectl(lab.Kube137), lab.KubeControllerManager(lab.Kube136))
}

func holdOpen(ctx context.Context) error {
	l, err := lab.New(lab.Config{})
	if err != nil {
		return err
	}
	if err := l.Start(ctx); err != nil {
		return err
	}
	fmt.Println(os.Getpid(), l.Etcd.PID(), l.Dir)
	<-ctx.Done()
	return nil // and leave the lab for Run to close
}
