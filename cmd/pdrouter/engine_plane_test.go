package main

import (
	"strings"
	"testing"

	"github.com/spf13/pflag"
)

// TestEnginePlaneFlags: tcp's path comes from the flags, and what makes no sense is refused by name.
func TestEnginePlaneFlags(t *testing.T) {
	for _, c := range []struct {
		args string
		path string
		want string // in the error
	}{
		{"", "auto", ""},
		{"--plane-path auto", "auto", ""},
		{"--plane-path memory", "memory", ""},
		{"--transport tcp --plane-path socket", "socket", ""},
		{"--plane-path air", "", `--plane-path is "air"`},
		{"--transport nixl --plane-path socket", "", "is for tcp"},
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
		if o.Transport.Path != c.path {
			t.Errorf("%q: path %q; want %q", c.args, o.Transport.Path, c.path)
		}
	}
}
