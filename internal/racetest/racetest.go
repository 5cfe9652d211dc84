// Package racetest tells a test whether it runs with the race detector, which makes it many times slower and has pools forget, by chance, what is
// given back to them.
package racetest

import (
	"runtime/debug"
	"slices"
)

// Enabled reports whether the binary was built with the race detector.
func Enabled() bool {
	info, ok := debug.ReadBuildInfo()
	return ok && slices.Contains(info.Settings, debug.BuildSetting{Key: "-race", Value: "true"})
}
