// Command apiserver is kube-apiserver, built from its Go modules for the end-to-end tests of discovery (make e2e-kube). It is a module of
// its own: nothing of pdrouter links it.
package main

import (
	"os"

	"k8s.io/component-base/cli"
	"k8s.io/kubernetes/cmd/kube-apiserver/app"
)

func main() { os.Exit(cli.Run(app.NewAPIServerCommand())) }
