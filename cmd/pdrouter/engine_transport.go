package main

import (
	"fmt"
	"log/slog"

	"pdrouter/kvplane"
	"pdrouter/kvplane/nixl"
)

// transportChoice is the transport that an engine's ranks use.
type transportChoice struct {
	name    string
	library *nixl.Library // nil for tcp
}

// chooseTransport opens NIXL where it is wanted. auto takes tcp where NIXL cannot be opened, and says so.
func chooseTransport(want string, log *slog.Logger) (*transportChoice, error) {
	if want != "tcp" {
		path, err := nixl.Find()
		if err == nil {
			var lib *nixl.Library
			if lib, err = nixl.Open(path); err == nil {
				log.Info("transport", "name", "nixl", "library", path)
				return &transportChoice{name: "nixl", library: lib}, nil
			}
		}
		if want == "nixl" {
			return nil, fmt.Errorf("engine: --transport nixl: %w", err)
		}
		log.Info("transport", "name", "tcp", "why", err)
	} else {
		log.Info("transport", "name", "tcp")
	}
	return &transportChoice{name: "tcp"}, nil
}

// make returns the transport of one rank.
func (t *transportChoice) make(o engineOptions, log *slog.Logger) kvplane.Transport {
	if t.library != nil {
		return kvplane.NewNIXL(t.library, kvplane.NIXLConfig{Doorbell: o.plane, Advertise: o.advertise, Log: log})
	}
	return kvplane.NewTCP(o.tcp(log))
}

// tcp is the tcp transport's configuration.
func (o engineOptions) tcp(log *slog.Logger) kvplane.TCPConfig {
	cfg := kvplane.TCPConfig{Listen: o.plane, Path: o.path, Streams: o.streams, Log: log}
	if o.path == "auto" {
		cfg.Path = ""
	}
	if o.advertise != "" {
		cfg.Advertise = []string{o.advertise}
	}
	return cfg
}

func (t *transportChoice) close() error {
	if t.library == nil {
		return nil
	}
	return t.library.Close()
}
