//go:build !linux

package transport_test

import (
	"os/exec"
	"testing"
)

// farAway and awaitWire do nothing where there are no namespaces.
func farAway(*exec.Cmd) func(int) error { return nil }

func awaitWire(testing.TB) {}
