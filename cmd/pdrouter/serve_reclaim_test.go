package main

import (
	"context"
	"errors"
	"log/slog"
	"testing"

	"pdrouter/metadata"
	"pdrouter/router/config"
	"pdrouter/router/connector"
	"pdrouter/router/reclaim"
)

// ranAgent is an agent that says that it runs.
type ranAgent struct{ runs chan struct{} }

func (a ranAgent) Run(ctx context.Context) error { close(a.runs); <-ctx.Done(); return nil }

func (ranAgent) Notify(context.Context, []metadata.Record, string, int) error { return nil }
func (ranAgent) Forget(string)                                                {}

// TestReclaimComesLater: the first stock model may come with a reload. The agent is opened then, once, and works.
func TestReclaimComesLater(t *testing.T) {
	log := slog.New(slog.DiscardHandler)
	none := config.Config{Models: []config.Model{{Name: "a", Connector: connector.NameKVPlane}}}
	stock := config.Config{Models: []config.Model{{Name: "a", Connector: connector.NamePush}}}
	opens, agent := 0, ranAgent{make(chan struct{})}
	c := newReclaims(&loaded{}, log)
	c.open = func(*slog.Logger) (reclaimAgent, error) { opens++; return agent, nil }
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- c.run(ctx) }()
	if c.among(none, log) != nil || opens != 0 {
		t.Errorf("opened %d times without stock engines", opens)
	}
	if c.among(stock, log) != reclaim.Agent(agent) {
		t.Error("no agent though there are stock engines")
	}
	<-agent.runs
	if c.among(none, log); c.among(stock, log) != reclaim.Agent(agent) || opens != 1 {
		t.Errorf("opened %d times; want one agent that is kept", opens)
	}
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// TestReclaimCannotBeOpened: a gateway without the library serves, and is not asked for it again; one that is told to leave it
// off does not look for it.
func TestReclaimCannotBeOpened(t *testing.T) {
	log := slog.New(slog.DiscardHandler)
	stock := config.Config{Models: []config.Model{{Name: "a", Connector: connector.NamePull}}}
	for off, want := range map[string]int{"off": 0, "auto": 1} {
		var l loaded
		l.Reclaim = off
		opens := 0
		c := newReclaims(&l, log)
		c.open = func(*slog.Logger) (reclaimAgent, error) { opens++; return nil, errors.New("no library") }
		for range 3 {
			if c.among(stock, log) != nil {
				t.Error("an agent that could not be opened")
			}
		}
		if opens != want {
			t.Errorf("%s: opened %d times; want %d", off, opens, want)
		}
	}
}
