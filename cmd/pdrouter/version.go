package main

import (
	"runtime/debug"
	"strings"
)

// release is set by the linker where a build has no VCS data, as in the image: -ldflags "-X main.release=v1.2.3-4-gabcdef0".
var release string

// version says what was built, by release or else by the build's own VCS data: "pdrouter v1.2.3 (abcdef0)" or "pdrouter devel".
func version() string {
	if release != "" {
		return "pdrouter " + release
	}
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
