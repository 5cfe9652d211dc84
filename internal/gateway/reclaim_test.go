package gateway

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"strings"
	"testing"
	"time"

	"pdrouter/internal/configfile"
	"pdrouter/internal/stocktest"
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
	c := newReclaims(&configfile.Loaded{}, log)
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
		var l configfile.Loaded
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

// endingAgent is an agent that says when it has ended.
type endingAgent struct {
	ranAgent
	ended chan struct{}
}

func (a endingAgent) Run(ctx context.Context) error { <-ctx.Done(); close(a.ended); return nil }

// TestFault66ReclaimOutlivesLegs stops a gateway while the legs of a client that has left run on: what may have to be freed for them is
// freed by the agent, which works until they have ended.
func TestFault66ReclaimOutlivesLegs(t *testing.T) {
	p, d := stocktest.New(t, "p1", 1), stocktest.New(t, "d1", 1)
	g := newStockGateway(t, p, d, "")
	agent := endingAgent{ended: make(chan struct{})}
	g.reclaims = &reclaims{agent: agent, opened: make(chan struct{})}
	close(g.reclaims.opened)
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	stopped := make(chan error, 1)
	go func() { stopped <- g.Run(ctx) }()
	Until(t, "the pair is warm", func() bool { return g.router.Stats().PairsWarm == 1 })
	busy := make(chan struct{})
	p.Hold(busy)
	client, leave := context.WithCancel(t.Context())
	left := make(chan struct{})
	go func() {
		defer close(left)
		req, _ := http.NewRequestWithContext(client, http.MethodPost, "http://"+g.clients.Addr().String()+"/v1/completions", strings.NewReader(`{"model":"tiny","prompt":"a","max_tokens":2}`))
		req.Header.Set("Content-Type", "application/json")
		if a, err := http.DefaultClient.Do(req); err == nil {
			a.Body.Close()
		}
	}()
	Until(t, "prefill has the request", func() bool { return g.router.Stats().Engines[0].InFlight == 1 })
	leave()
	<-left
	Until(t, "the request is over", func() bool { return g.router.Stats().Requests == 0 })
	stop()
	select {
	case <-agent.ended:
		t.Error("the agent has ended while prefill's leg runs on")
	case <-time.After(500 * time.Millisecond):
	}
	if n := g.router.Stats().Engines[0].InFlight; n != 1 {
		t.Errorf("%d legs run on", n)
	}
	close(busy)
	if err := <-stopped; err != nil {
		t.Error(err)
	}
	<-agent.ended
}
