package main

import (
	"runtime/debug"
	"strings"
)

// version says what was built, from the build's own VCS data: "pdrouter v1.2.3 (abcdef0)" or "pdrouter devel".
func version() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "pdrouter devel"
	}
	v := "pdrouter " + strings.Trim(info.Main.Version, "()")
	for _, s := range info.Settings {
		if s.Key == "vcs.revision" && len(s.Value) >= 7 {
			v += " (" + s.Value[:7] + ")"
		}
	}
	return v
}
