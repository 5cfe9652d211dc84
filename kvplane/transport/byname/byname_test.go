package byname

import (
	"errors"
	"log/slog"
	"path/filepath"
	"strings"
	"testing"
)

func TestTransportConfig(t *testing.T) {
	good := Config{Name: "auto", Listen: "127.0.0.1:0", Path: "auto"}
	for _, c := range []struct {
		change func(*Config)
		want   string
	}{
		{func(*Config) {}, ""},
		{func(c *Config) { c.Name, c.Path = "tcp", "socket" }, ""},
		{func(c *Config) { c.Name = "rdma" }, `name is "rdma"; want auto, tcp or nixl`},
		{func(c *Config) { c.Path = "air" }, `path is "air"; want auto, memory or socket`},
		{func(c *Config) { c.Listen = "here" }, `listen is "here"; want host:port`},
		{func(c *Config) { c.Listen, c.Name = "", "" }, "name is \"\"; want auto, tcp or nixl\nlisten is \"\"; want host:port"},
	} {
		x, got := good, ""
		c.change(&x)
		if err := x.Validate(); err != nil {
			got = err.Error()
		}
		if got != c.want {
			t.Errorf("%+v: %q; want %q", x, got, c.want)
		}
	}
}

// TestOpenTransports: where NIXL cannot be opened, auto takes tcp, unless tcp would not reach the memory.
func TestOpenTransports(t *testing.T) {
	nowhere := filepath.Join(t.TempDir(), "libnixl_capi.so")
	for _, c := range []struct {
		name   string
		device bool
		want   string // "": an error
	}{{"tcp", false, "tcp"}, {"auto", false, "tcp"}, {"auto", true, ""}, {"nixl", false, ""}} {
		cfg := Config{Name: c.name, Library: nowhere, Listen: "127.0.0.1:0", Advertise: "example.org", Path: "auto"}
		var said strings.Builder
		all, err := Open(cfg, c.device, slog.New(slog.NewTextHandler(&said, nil)))
		if c.want == "" {
			if err == nil || !strings.Contains(err.Error(), "transport nixl: ") {
				t.Errorf("%+v: %v; want why NIXL is not there", c, err)
			}
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		one := all.New()
		if all.Name() != c.want || one.Name() != c.want || !strings.Contains(said.String(), "name="+c.want) {
			t.Errorf("%+v: transports %s of %s, said %q", c, one.Name(), all.Name(), &said)
		}
		if got := cfg.tcp(nil); got.Path != "" || len(got.Advertise) != 1 {
			t.Errorf("tcp is configured as %+v", got)
		}
		if err := errors.Join(one.Close(), all.Close(), all.Close()); err != nil {
			t.Error(err)
		}
	}
}
