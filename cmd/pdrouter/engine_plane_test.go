package main

import (
	"strings"
	"testing"

	"github.com/spf13/pflag"
)

// TestEnginePlaneFlags: tcp's path and connections come from the flags, and what makes no sense is refused by name.
func TestEnginePlaneFlags(t *testing.T) {
	for _, c := range []struct {
		args    string
		path    string
		streams int
		want    string // in the error
	}{
		{"", "auto", 1, ""},
		{"--plane-path auto", "auto", 1, ""},
		{"--plane-path memory --plane-streams 4", "memory", 4, ""},
		{"--transport tcp --plane-path socket --plane-streams 16", "socket", 16, ""},
		{"--plane-path air", "", 0, `--plane-path is "air"`},
		{"--plane-streams 0", "", 0, "--plane-streams is 0"},
		{"--plane-streams 17", "", 0, "--plane-streams is 17"},
		{"--transport nixl --plane-path socket", "", 0, "are for tcp"},
	} {
		f := pflag.NewFlagSet("mock-engine", pflag.ContinueOnError)
		options := engineFlags(f)
		if err := f.Parse(strings.Fields(c.args)); err != nil {
			t.Fatal(err)
		}
		o, err := options()
		if c.want != "" {
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%q: %v; want %q", c.args, err, c.want)
			}
			continue
		}
		if err != nil {
			t.Errorf("%q: %v", c.args, err)
			continue
		}
		if cfg := o.transport; cfg.Path != c.path || cfg.Streams != c.streams {
			t.Errorf("%q: path %q over %d connections; want %q over %d", c.args, cfg.Path, cfg.Streams, c.path, c.streams)
		}
	}
}
