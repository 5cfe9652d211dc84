package main

import (
	"cmp"
	"fmt"
	"runtime"
	"runtime/debug"
	"strings"

	"github.com/spf13/cobra"

	"pdrouter/kvplane/nixl"
)

// release is set by the linker where a build has no VCS data, as in the image: -ldflags "-X main.release=v1.2.3-4-gabcdef0".
var release string

// vllmTested are the versions of vLLM that the end-to-end tests run.
const vllmTested = "0.32.0"

// build says what was built, of what, and what it finds on this machine.
type build struct {
	Version string `json:"version"`
	Commit  string `json:"commit,omitempty"`
	Go      string `json:"go"`
	OS      string `json:"os"`
	Arch    string `json:"arch"`
	NIXL    string `json:"nixl,omitempty"` // the library's path; "": it is not found
	VLLM    string `json:"vllm_tested"`
}

// thisBuild takes the version from release or else from the build's own VCS data.
func thisBuild() build {
	b := build{Version: release, Go: runtime.Version(), OS: runtime.GOOS, Arch: runtime.GOARCH, VLLM: vllmTested}
	if info, ok := debug.ReadBuildInfo(); ok {
		b.Version = cmp.Or(b.Version, strings.Trim(info.Main.Version, "()"))
		for _, s := range info.Settings {
			if s.Key == "vcs.revision" && len(s.Value) >= 7 {
				b.Commit = s.Value[:7]
			}
		}
	}
	b.Version = cmp.Or(b.Version, "devel")
	return b
}

// version names the build: "v1.2.3 (abcdef0)" or "devel".
func version() string {
	b := thisBuild()
	if b.Commit == "" || release != "" {
		return b.Version
	}
	return fmt.Sprintf("%s (%s)", b.Version, b.Commit)
}

func versionCommand() *cobra.Command {
	c := &cobra.Command{Use: "version", Short: "Print the version, what it was built with, and whether NIXL is found.", Args: cobra.NoArgs}
	output := outputFlag(c)
	c.RunE = func(c *cobra.Command, _ []string) error {
		b := thisBuild()
		if path, err := nixl.Find(); err == nil {
			b.NIXL = path
		}
		if output.json() {
			return printJSON(c.OutOrStdout(), b)
		}
		_, err := fmt.Fprintf(c.OutOrStdout(), "pdrouter version %s\ngo      %s %s/%s\nNIXL    %s\nvLLM    tested with %s\n",
			version(), b.Go, b.OS, b.Arch, cmp.Or(b.NIXL, "not found"), b.VLLM)
		return err
	}
	return c
}

// outputFormat is the value of the flag --output.
type outputFormat string

// outputFlag gives a command the flag that chooses between text and JSON.
func outputFlag(c *cobra.Command) *outputFormat {
	o := outputFormat("text")
	c.Flags().VarP(&o, "output", "o", "text or json")
	return &o
}

func (o *outputFormat) json() bool { return *o == "json" }

// String implements pflag.Value.
func (o *outputFormat) String() string { return string(*o) }

// Type implements pflag.Value.
func (o *outputFormat) Type() string { return "format" }

// Set implements pflag.Value.
func (o *outputFormat) Set(s string) error {
	if s != "text" && s != "json" {
		return fmt.Errorf("want text or json")
	}
	*o = outputFormat(s)
	return nil
}
