package router

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"

	"pdrouter/metadata"
	"pdrouter/metadata/handshake"
	"pdrouter/router/config"
	"pdrouter/router/connector"
	"pdrouter/router/fleet"
)

// fakeStock is what side channels say, and what was published. Nothing is asked at once with anything else.
type fakeStock struct {
	id        string // "": nobody answers
	published []metadata.Record
	withdrawn []metadata.Record
}

func (f *fakeStock) First(_ context.Context, at fleet.SideChannel) (metadata.Record, error) {
	if f.id == "" {
		return metadata.Record{}, errors.New("nobody answers")
	}
	return metadata.Record{Version: metadata.RecordVersion, EngineID: f.id, Compatibility: "digest", Size: at.Size}, nil
}

func (f *fakeStock) All(ctx context.Context, at fleet.SideChannel) ([]metadata.Record, error) {
	if f.id != at.EngineID {
		return nil, errors.New("moved")
	}
	rec, err := f.First(ctx, at)
	return []metadata.Record{rec}, err
}

func (f *fakeStock) Known(context.Context, string) []metadata.Record { return nil }

func (f *fakeStock) Publish(_ context.Context, recs []metadata.Record) error {
	f.published = recs
	return nil
}

func (f *fakeStock) Withdraw(_ context.Context, recs []metadata.Record) error {
	f.withdrawn = recs
	return nil
}

// TestFault46TwoLooks: one look without an answer changes nothing, the second takes prefill off its pairs, the next
// answer brings it back; another run in its place is never held to what the one before did.
func TestFault46TwoLooks(t *testing.T) {
	stock := &fakeStock{id: "one"}
	cfg := config.Config{Models: []config.Model{{Name: "m", Connector: connector.NamePush, Prefill: []config.Engine{{Name: "p", URL: "http://p:1"}}, Decode: []config.Engine{{Name: "d", URL: "http://d:1"}}}}}
	r, err := New(cfg, Parts{Stock: stock})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	c := r.snapshot().fleet.Pairs[0]
	p := c.Prefill
	coord := func(id string) {
		p.Endpoint.Store(&connector.PrefillEndpoint{EngineID: id, Host: "h", Port: 1, TP: 1, PP: 1, DCP: 1})
	}
	look := func(answers string) {
		stock.id = answers
		r.monitor.CheckSideChannel(t.Context(), p)
	}
	dead := func() bool {
		var u *metadata.Unpairable
		return errors.As(r.snapshot().fleet.Compatible(c), &u) && u.Reason == metadata.SideChannelDead
	}
	expect := func(what string, isDead, isDoubtful bool) {
		t.Helper()
		if dead() != isDead || r.snapshot().fleet.Doubtful(c) != isDoubtful {
			t.Errorf("%s: dead %v, doubtful %v; want %v and %v", what, dead(), r.snapshot().fleet.Doubtful(c), isDead, isDoubtful)
		}
	}
	expect("before anything is known", false, false)
	coord("one")
	look("")
	expect("one silence of a run that has never answered", false, false)
	look("")
	expect("two", false, true)
	look("one")
	expect("an answer", false, false)
	if len(stock.published) != 1 || stock.published[0].Generation == 0 || stock.published[0].Validate() != nil {
		t.Errorf("published %+v: %v", stock.published, stock.published[0].Validate())
	}
	first := stock.published[0].Generation
	look("")
	expect("one silence", false, false)
	look("")
	expect("two silences", true, true)
	look("one")
	expect("an answer again", false, false)
	look("")
	look("")
	coord("two") // as its next answer says
	expect("another run, not looked at", false, false)
	look("")
	expect("its first silence", false, false)
	look("two")
	expect("its answer", false, false)
	if len(stock.withdrawn) != 1 || stock.withdrawn[0].EngineID != "one" || stock.published[0].EngineID != "two" || stock.published[0].Generation <= first {
		t.Errorf("withdrawn %+v, published %+v", stock.withdrawn, stock.published)
	}
	before := p.Generation.Load()
	look("three")
	if p.Endpoint.Load() != nil || p.Generation.Load() != before+1 {
		t.Error("another run that answers was not noticed")
	}
	look("three") // nothing is known of where it is: nobody is asked
	expect("a run that has reported nothing", false, false)
}

// TestFault44MovedOnce: however many answers say at once that prefill was started anew, its pairs are void once.
func TestFault44MovedOnce(t *testing.T) {
	cfg := config.Config{Models: []config.Model{{Name: "m", Connector: connector.NamePush, Prefill: []config.Engine{{Name: "p", URL: "http://p:1"}}, Decode: []config.Engine{{Name: "d", URL: "http://d:1"}}}}}
	r, err := New(cfg, Parts{})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	p := r.snapshot().fleet.Pairs[0].Prefill
	at := func(id string) *connector.PrefillEndpoint {
		return &connector.PrefillEndpoint{EngineID: id, Host: "h", Port: 1, TP: 1, PP: 1, DCP: 1}
	}
	for range 100 {
		was := at("one")
		p.Endpoint.Store(was)
		before := p.Generation.Load()
		r.monitor.Moved(p, was, at("one")) // it says what is known
		var telling sync.WaitGroup
		for range 4 {
			telling.Go(func() { r.monitor.Moved(p, was, at("two")) })
		}
		telling.Go(func() { r.monitor.Restarted(p, was) })
		telling.Wait()
		if got := p.Generation.Load() - before; got != 1 {
			t.Fatalf("it was started anew %d times", got)
		}
	}
}

// TestFault44Recognized: what an engine that was down says of itself decides what is void. If it says nothing, its pairs shake
// hands again, and what is under way goes on.
func TestFault44Recognized(t *testing.T) {
	cfg := config.Config{Models: []config.Model{{Name: "m", Connector: connector.NamePush, Prefill: []config.Engine{{Name: "p", URL: "http://p:1"}}, Decode: []config.Engine{{Name: "d", URL: "http://d:1", SideChannel: "h:1"}, {Name: "e", URL: "http://e:1"}}}}}
	for _, row := range []struct {
		name           string
		nth            int // of the engines
		says           string
		again, forgets bool // another generation; the endpoint
		ready          bool
	}{
		{"prefill, the same", 0, "one", false, false, true},
		{"prefill, another", 0, "two", true, true, false},
		{"prefill, silent", 0, "", false, true, false},
		{"decode, the same", 1, "one", false, false, true},
		{"decode, another", 1, "two", true, false, false},
		{"decode, silent", 1, "", false, false, false},
		{"decode, of which no channel is known", 2, "one", false, false, false},
	} {
		t.Run(row.name, func(t *testing.T) {
			stock := &fakeStock{id: "one"}
			r, err := New(cfg, Parts{Stock: stock})
			if err != nil {
				t.Fatal(err)
			}
			defer r.Close()
			r.pairs.Close()
			slow := make(chan error)
			r.pairs.Registry, err = handshake.New(handshake.Config{}, func(ctx context.Context, pair metadata.Pair) error {
				if pair.Prefill.Engine != "slow" {
					return nil
				}
				select {
				case err := <-slow:
					return err
				case <-ctx.Done():
					return ctx.Err()
				}
			})
			if err != nil {
				t.Fatal(err)
			}
			p, e := r.snapshot().fleet.Engines[0], r.snapshot().fleet.Engines[row.nth]
			p.Endpoint.Store(&connector.PrefillEndpoint{EngineID: "one", Host: "h", Port: 1, TP: 1, PP: 1, DCP: 1})
			r.monitor.CheckSideChannel(t.Context(), e)
			pair := metadata.Pair{Prefill: p.Incarnation(), Decode: r.snapshot().fleet.Engines[max(row.nth, 1)].Incarnation()}
			if err := r.pairs.Wait(t.Context(), pair); err != nil {
				t.Fatal(err)
			}
			underWay := metadata.Pair{Prefill: metadata.Incarnation{Engine: "slow", Generation: 1}, Decode: e.Incarnation()}
			if err := r.pairs.Start(underWay, 0); err != nil {
				t.Fatal(err)
			}
			before := e.Generation.Load()
			stock.id = row.says
			r.monitor.Recognize(t.Context(), e)
			if again := e.Generation.Load() != before; again != row.again || r.pairs.Ready(pair) != row.ready || (p.Endpoint.Load() == nil) != row.forgets {
				t.Errorf("another generation %v, ready %v, endpoint %v; want %+v", again, r.pairs.Ready(pair), p.Endpoint.Load(), row)
			}
			if row.again {
				if n := r.pairs.Stats().Failed[handshake.FailedForgotten]; n != 1 {
					t.Errorf("%d handshakes with the old run were ended; want 1", n)
				}
				return
			}
			slow <- nil
			if err := r.pairs.Wait(t.Context(), underWay); err != nil { // what was under way succeeds
				t.Error(err)
			}
		})
	}
}

// TestOtherTransferMode: prefill that says that it moves KV in another way than the connector is not used, and decode is
// not asked to take what it holds.
func TestOtherTransferMode(t *testing.T) {
	for _, row := range []struct {
		mode string
		conn connector.Connector
		fits bool
	}{{"push", connector.Named(connector.NamePush), true}, {"pull", connector.Named(connector.NamePush), false}, {"pull", connector.Named(connector.NamePull), true}, {"push", connector.Named(connector.NamePull), false}, {"", connector.Named(connector.NamePush), true}, {"", connector.Named(connector.NamePull), true}} {
		kv := `{"remote_engine_id":"e","remote_host":"h","remote_port":1,"tp_size":2,"pp_size":1,"dcp_size":1,"transfer_mode":"` + row.mode + `"}`
		c, ok := connector.ParseEndpoint([]byte(kv))
		if !ok || c.Mode != row.mode || c.Moves(row.conn) != row.fits {
			t.Errorf("%q for %s: %+v, %v", row.mode, row.conn.Traits().Name, c, ok)
		}
	}
}

// TestSideChannelConfig refuses addresses that cannot be.
func TestSideChannelConfig(t *testing.T) {
	cfg := func(connectorName, side string) config.Config {
		return config.Config{Models: []config.Model{{Name: "m", Connector: connectorName, Prefill: []config.Engine{{Name: "p", URL: "http://p:1"}}, Decode: []config.Engine{{Name: "d", URL: "http://d:1", SideChannel: side}}}}}
	}
	for _, row := range []struct{ connector, side, want string }{
		{connector.NamePush, "10.0.0.7:5600", ""}, {connector.NamePull, "[::1]:5600", ""}, {connector.NamePush, "", ""},
		{connector.NamePush, "10.0.0.7", "host:port"}, {connector.NamePush, ":5600", "host:port"}, {connector.NamePull, "h:0", "host:port"}, {connector.NamePull, "h:65536", "host:port"},
		{connector.NameKVPlane, "h:5600", "no side channel for connector kvplane"},
	} {
		err := cfg(row.connector, row.side).Validate()
		if (err == nil) != (row.want == "") || err != nil && (!strings.Contains(err.Error(), row.want) || !strings.Contains(err.Error(), "models[0].decode[0].side_channel")) {
			t.Errorf("%s %q: %v; want %q", row.connector, row.side, err, row.want)
		}
	}
}
