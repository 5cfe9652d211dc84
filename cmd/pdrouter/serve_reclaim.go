package main

import (
	"context"
	"fmt"

	"pdrouter/kvplane/nixl"
	"pdrouter/kvplane/reclaim"
	"pdrouter/router"
)

// validateReclaim reports what is wrong with the section, if anything.
func (c config) validateReclaim() error {
	switch c.Reclaim {
	case "auto", "off", "":
		return nil
	}
	return fmt.Errorf("reclaim is %q; want auto or off", c.Reclaim)
}

// stock reports whether some model's engines are stock ones.
func (c config) stock() bool {
	for _, m := range c.Models {
		if m.Connector == router.ConnectorPush || m.Connector == router.ConnectorPull {
			return true
		}
	}
	return false
}

// reclaim gives the router an agent of its own among stock engines, where there are any, and returns what runs it. It says
// in the log which it is. Nothing is started before something is to be given back.
func (g *gateway) reclaim(l *loaded, parts *router.Parts) func(context.Context) error {
	idle := func(ctx context.Context) error { <-ctx.Done(); return nil }
	switch {
	case l.Reclaim == "off":
		g.log.Info("reclaim is off: stock engines are not told what is not wanted any more")
		return idle
	case !l.stock():
		return idle
	}
	lib, err := nixl.Open("")
	if err != nil {
		g.log.Warn("no reclaim: stock engines are not told what is not wanted any more", "why", err)
		return idle
	}
	g.log.Info("reclaim", "library", lib.Path())
	agent := reclaim.New(lib, reclaim.Config{Log: g.log})
	parts.Reclaim = agent
	return func(ctx context.Context) error {
		err := agent.Run(ctx)
		if closed := lib.Close(); err == nil {
			err = closed
		}
		return err
	}
}
