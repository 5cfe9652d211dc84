// Package byname opens the transport that a configuration names. It is apart from package transport, so that a user of one transport does not
// link the other.
package byname

import (
	"errors"
	"fmt"
	"log/slog"
	"net"

	"pdrouter/internal/field"
	"pdrouter/kvplane/nixl"
	"pdrouter/kvplane/transport"
	"pdrouter/kvplane/transport/nixltransport"
	"pdrouter/kvplane/transport/tcp"
)

// Config is how the bytes of an engine's ranks move, as people configure it. Every field but Library and
// Advertise must be given.
type Config struct {
	Name      string `yaml:"name"`      // auto (nixl where it can be opened, else tcp), tcp or nixl
	Library   string `yaml:"library"`   // of NIXL; "": the one that nixl.Find finds
	Listen    string `yaml:"listen"`    // host:port of tcp's connections, of nixl's doorbell
	Advertise string `yaml:"advertise"` // host that peers reach it by; "": what it listens on
	Path      string `yaml:"path"`      // tcp: auto, memory or socket
}

// Validate reports every mistake at once, each by its key.
func (c Config) Validate() error {
	var errs []error
	want := func(ok bool, path, format string, args ...any) {
		if !ok {
			errs = append(errs, field.Errorf(path, format, args...))
		}
	}
	want(c.Name == "auto" || c.Name == "tcp" || c.Name == "nixl", "name", "is %.40q; want auto, tcp or nixl", c.Name)
	want(c.Path == "auto" || c.Path == tcp.PathMemory || c.Path == tcp.PathSocket, "path", "is %.40q; want auto, memory or socket", c.Path)
	_, _, err := net.SplitHostPort(c.Listen)
	want(err == nil, "listen", "is %.200q; want host:port", c.Listen)
	return errors.Join(errs...)
}

// Transports makes the transports of an engine's ranks.
type Transports struct {
	cfg     Config
	library *nixl.Library // nil for tcp
	log     *slog.Logger
}

// Open opens NIXL where it is wanted. auto takes tcp where NIXL cannot be opened, and says so, unless the memory
// is a device's, which tcp does not reach.
func Open(c Config, device bool, log *slog.Logger) (*Transports, error) {
	t := &Transports{cfg: c, log: log}
	if c.Name == "tcp" {
		log.Info("transport", "name", "tcp")
		return t, nil
	}
	lib, err := nixl.Open(c.Library)
	switch {
	case err == nil:
		t.library = lib
		log.Info("transport", "name", "nixl", "library", lib.Path())
	case c.Name == "nixl" || device:
		return nil, fmt.Errorf("kvplane: transport nixl: %w", err)
	default:
		log.Warn("transport", "name", "tcp", "why", err)
	}
	return t, nil
}

// Name is tcp or nixl.
func (t *Transports) Name() string {
	if t.library != nil {
		return "nixl"
	}
	return "tcp"
}

// New returns a transport of one rank that has not been opened.
func (t *Transports) New() transport.Transport {
	if t.library != nil {
		return nixltransport.New(t.library, nixltransport.Config{Doorbell: t.cfg.Listen, Advertise: t.cfg.Advertise, Log: t.log})
	}
	return tcp.New(t.cfg.tcp(t.log))
}

func (c Config) tcp(log *slog.Logger) tcp.Config {
	out := tcp.Config{Listen: c.Listen, Path: c.Path, Log: log}
	if c.Path == "auto" {
		out.Path = ""
	}
	if c.Advertise != "" {
		out.Advertise = []string{c.Advertise}
	}
	return out
}

// Close ends the use of the library. Every transport must be closed before. Safe to call twice.
func (t *Transports) Close() error {
	if t.library == nil {
		return nil
	}
	return t.library.Close()
}
