package router

import (
	"context"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"pdrouter/metadata"
	"pdrouter/router/config"
	"pdrouter/router/connector"
	"pdrouter/router/fleet"
)

// looks counts the looks at the side channel of host b.
type looks struct {
	fakeStock
	n atomic.Int64
}

func (l *looks) First(_ context.Context, at fleet.SideChannel) (metadata.Record, error) {
	if at.Host == "b" {
		l.n.Add(1)
	}
	return metadata.Record{Version: metadata.RecordVersion, EngineID: "id", Compatibility: "digest", Size: at.Size}, nil
}

// onLost calls told when it is logged that the first engine is lost.
type onLost struct {
	slog.Handler
	told func()
}

func (h onLost) Enabled(context.Context, slog.Level) bool { return true }

func (h onLost) Handle(_ context.Context, r slog.Record) error {
	if r.Message == "engine is not of the configuration any more" {
		h.told()
	}
	return nil
}

// TestLostEngineIsLetGoOnce has the monitor go by a configuration that has lost two engines while that comes into use. Once it has let go of one, it does
// not look after it again: what looked after it may not have ended yet.
func TestLostEngineIsLetGoOnce(t *testing.T) {
	e := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	defer e.Close()
	engine := func(name string) config.Engine {
		return config.Engine{Name: name, URL: e.URL, SideChannel: name + ":1"}
	}
	m := config.Model{Name: "m", Connector: connector.NamePush, Prefill: []config.Engine{engine("a"), engine("b"), engine("c")}, Decode: []config.Engine{engine("d")}}
	var r *Router
	await := func(what string, is func() bool) {
		for end := time.Now().Add(time.Minute); !is(); time.Sleep(time.Millisecond) {
			if time.Now().After(end) {
				t.Fatal("never: " + what)
			}
		}
	}
	attended := func(name string) bool {
		return slices.ContainsFunc(r.monitor.Monitored(), func(e *fleet.Engine) bool { return e.Name == name })
	}
	stock, gone := new(looks), new(atomic.Int64)
	parts := Parts{Stock: stock, Gone: func(string) { gone.Add(1) }, Log: slog.New(onLost{slog.DiscardHandler, sync.OnceFunc(func() {
		r.monitor.Update()
		await("b is let go", func() bool { return !attended("b") })
	})})}
	cfg := config.Config{Models: []config.Model{m}, Timeouts: config.Timeouts{SideChannel: time.Hour}}
	r, err := New(cfg, parts)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { defer close(ended); r.monitor.Run(ctx) }()
	await("b is looked at", func() bool { return attended("b") && stock.n.Load() == 1 })
	cfg.Models = slices.Clone(cfg.Models)
	cfg.Models[0].Prefill = m.Prefill[2:]
	if err := r.Apply(cfg, parts); err != nil {
		t.Fatal(err)
	}
	await("both are forgotten", func() bool { return gone.Load() == 2 })
	stop()
	<-ended
	if n := stock.n.Load(); n != 1 {
		t.Errorf("%d looks at b; want the one from before it was lost", n)
	}
}
