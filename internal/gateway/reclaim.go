package gateway

import (
	"context"
	"log/slog"

	"pdrouter/internal/configfile"
	"pdrouter/kvplane/nixl"
	kvreclaim "pdrouter/kvplane/reclaim"
	"pdrouter/router/config"
	"pdrouter/router/reclaim"
)

// stocked reports whether some model's engines are stock ones.
func stocked(c config.Config) bool {
	for _, m := range c.Models {
		if m.Stock() {
			return true
		}
	}
	return false
}

// reclaims is the gateway's own agent among stock engines: opened with the first configuration that has some, at the start or
// later, and kept until the gateway ends. The zero value has none yet.
type reclaims struct {
	off    bool
	open   func(log *slog.Logger) (reclaimAgent, error)
	agent  reclaimAgent  // nil: there is none
	tried  bool          // it could not be opened, which a restart may change
	opened chan struct{} // closed when there is one
}

// reclaimAgent is what reclaims opens.
type reclaimAgent interface {
	reclaim.Agent
	// Run has the agent work until ctx ends.
	Run(ctx context.Context) error
}

func newReclaims(l *configfile.Loaded, log *slog.Logger) *reclaims {
	if l.Reclaim == "off" {
		log.Info("reclaim is off: KV blocks that failed requests leave on stock engines are not freed")
	}
	return &reclaims{off: l.Reclaim == "off", open: openReclaim, opened: make(chan struct{})}
}

// among sees to it that there is an agent if the configuration has stock engines, and returns it; nil if there is none. It says in
// the log which it is. Nothing is started before something is to be given back. Only the owner of the configuration may call it.
func (c *reclaims) among(cfg config.Config, log *slog.Logger) reclaim.Agent {
	if c.agent == nil && !c.off && !c.tried && stocked(cfg) {
		agent, err := c.open(log)
		if err != nil {
			c.tried = true
			log.Warn("KV blocks that failed requests leave on stock engines cannot be freed", "why", err)
		} else {
			c.agent = agent
			close(c.opened)
		}
	}
	if c.agent == nil {
		return nil
	}
	return c.agent
}

// run has the agent work, once there is one, until ctx ends.
func (c *reclaims) run(ctx context.Context) error {
	select {
	case <-c.opened:
		return c.agent.Run(ctx)
	case <-ctx.Done():
		return nil
	}
}

// nixlAgent closes its library behind it.
type nixlAgent struct {
	*kvreclaim.Agent
	lib *nixl.Library
}

func openReclaim(log *slog.Logger) (reclaimAgent, error) {
	lib, err := nixl.Open("")
	if err != nil {
		return nil, err
	}
	log.Info("reclaim", "library", lib.Path())
	return nixlAgent{kvreclaim.New(lib, kvreclaim.Config{Log: log}), lib}, nil
}

func (a nixlAgent) Run(ctx context.Context) error {
	err := a.Agent.Run(ctx)
	if closed := a.lib.Close(); err == nil {
		err = closed
	}
	return err
}
