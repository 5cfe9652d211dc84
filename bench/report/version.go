package report

import (
	"os"
	"os/exec"
	"runtime"
	"runtime/debug"
	"strings"
	"sync"
)

// Versions is what was measured, with what.
type Versions struct {
	Pdrouter string   `json:"pdrouter"`
	Go       string   `json:"go"`
	Fasthttp string   `json:"fasthttp"`
	Beside   []string `json:"beside,omitempty"` // what ran beside pdrouter, each with its version
}

// String names all of them.
func (v Versions) String() string {
	return strings.Join(append([]string{"pdrouter " + v.Pdrouter, v.Go, "fasthttp " + v.Fasthttp}, v.Beside...), ", ")
}

// ReadVersions reads what this binary was built from.
func ReadVersions() Versions {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		info = &debug.BuildInfo{}
	}
	v := Versions{Pdrouter: revision(info.Settings), Go: runtime.Version()}
	if v.Pdrouter == "" {
		v.Pdrouter = atStart()
	}
	for _, d := range info.Deps {
		if d.Path == "github.com/valyala/fasthttp" {
			v.Fasthttp = d.Version
		}
	}
	return v
}

// revision is the commit that a build names, with +dirty if there was more than that; "" if it names none.
func revision(settings []debug.BuildSetting) string {
	var commit, dirty string
	for _, s := range settings {
		switch {
		case s.Key == "vcs.revision":
			commit = s.Value[:min(12, len(s.Value))]
		case s.Key == "vcs.modified" && s.Value == "true":
			dirty = "+dirty"
		}
	}
	if commit == "" {
		return ""
	}
	return commit + dirty
}

// atStart is checkedOut when it was first asked for: since then a report may have been written there.
var atStart = sync.OnceValue(checkedOut)

// checkedOut is the commit that the working directory has checked out, if that is where pdrouter's sources are: builds name none
// with GOFLAGS=-buildvcs=false.
func checkedOut() string {
	const unknown = "unknown"
	module, err := os.ReadFile("go.mod")
	if err != nil || !strings.HasPrefix(string(module), "module pdrouter\n") {
		return unknown
	}
	out, err := exec.Command("git", "describe", "--always", "--dirty=+dirty", "--abbrev=12").Output()
	if err != nil {
		return unknown
	}
	return strings.TrimSpace(string(out)) + " (checked out where it ran)"
}
