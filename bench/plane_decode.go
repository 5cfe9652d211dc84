package bench

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"time"

	"pdrouter/kvplane"
	"pdrouter/kvplane/nixl"
	"pdrouter/metadata"
)

// planeOrder is what the measuring process tells the decode process of a plane run, one JSON value a line.
type planeOrder struct {
	Do     string          `json:"do"` // open, run, hold, drop, sink, thread
	Which  string          `json:"which,omitempty"`
	Layout planeLayout     `json:"layout,omitzero"`
	Peer   metadata.Record `json:"peer,omitzero"`
	First  int             `json:"first,omitempty"` // transfer
	Count  int             `json:"count,omitempty"`
	Blocks int             `json:"blocks,omitempty"` // of each transfer
	Bytes  int             `json:"bytes,omitempty"`  // sink: of one round
	Conns  int             `json:"conns,omitempty"`  // sink
}

// planeAnswer is what it answers, one JSON value a line.
type planeAnswer struct {
	Error   string          `json:"error,omitempty"`
	Record  metadata.Record `json:"record,omitzero"`
	Address string          `json:"address,omitempty"`
	Ready   []time.Duration `json:"ready,omitempty"`   // from registration until the agent has seen all completions, of each transfer
	Release []time.Duration `json:"release,omitempty"` // from the completion taken in to decode released
	Sockets uint64          `json:"sockets,omitempty"` // bytes that came through sockets so far
	Memory  uint64          `json:"memory,omitempty"`  // bytes copied out of the writer's memory so far
}

// ServePlane is the decode process of a plane run. It does what in says until it ends.
func ServePlane(ctx context.Context, in io.Reader, out io.Writer) error {
	d := &planeDecode{}
	defer d.stop()
	read, write := json.NewDecoder(in), json.NewEncoder(out)
	for {
		var o planeOrder
		if err := read.Decode(&o); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return fmt.Errorf("bench: plane: %w", err)
		}
		a, err := d.do(ctx, o)
		if err != nil {
			a.Error = err.Error()
		}
		if err := write.Encode(a); err != nil {
			return fmt.Errorf("bench: plane: %w", err)
		}
	}
}

// planeDecode is the state of the decode process.
type planeDecode struct {
	rank  *planeRank
	peer  metadata.Record
	sinks []net.Conn
	ended []func() error
}

func (d *planeDecode) stop() {
	for _, c := range d.sinks {
		_ = c.Close() // the run is over
	}
	if d.rank != nil {
		_ = d.rank.close() // the process ends anyway
	}
	for _, f := range d.ended {
		_ = f()
	}
}

func (d *planeDecode) do(ctx context.Context, o planeOrder) (planeAnswer, error) {
	switch o.Do {
	case "open":
		d.peer = o.Peer
		r, err := openPlaneRank(o.Which, o.Layout, metadata.Decode, func(metadata.Incarnation) ([]metadata.Record, error) {
			return []metadata.Record{d.peer}, nil
		})
		if err != nil {
			return planeAnswer{}, err
		}
		d.rank = r
		return planeAnswer{Record: r.agent.Record()}, nil
	case "run":
		return d.run(o)
	case "hold":
		for i := range o.Count {
			if i < waiting(o.Count) {
				d.rank.agent.Expect(d.expectation(o.First+i, o.Blocks))
			} else {
				d.rank.agent.Queue(planeID(o.First+i), d.peer.Incarnation)
			}
		}
		return planeAnswer{}, d.until(func(s kvplane.Status) bool { return s.Expectations >= waiting(o.Count) })
	case "drop":
		for i := range o.Count {
			d.rank.agent.Abandon(planeID(o.First+i), "the row is over")
		}
		err := d.until(func(s kvplane.Status) bool { return s.Expectations == 0 })
		for len(d.rank.reports) > 0 {
			<-d.rank.reports
		}
		return planeAnswer{}, err
	case "sink":
		return d.sink(ctx, o)
	case "thread":
		return planeAnswer{}, d.thread()
	}
	return planeAnswer{}, fmt.Errorf("%q is no order", o.Do)
}

// until waits for the agent's books.
func (d *planeDecode) until(ok func(kvplane.Status) bool) error {
	for range 3000 {
		if ok(d.rank.agent.Status()) {
			return nil
		}
		time.Sleep(10 * time.Millisecond)
	}
	return fmt.Errorf("the agent's books do not settle: %+v", d.rank.agent.Status())
}

// expectation is what decode registers for the i-th transfer.
func (d *planeDecode) expectation(i, blocks int) kvplane.Expectation {
	return kvplane.Expectation{
		ID: planeID(i), Peer: d.peer.Incarnation, Need: [2]int{0, blocks * planeBlockTokens},
		Groups: []kvplane.BlockList{{Blocks: planeBlocks(d.rank.layout, i, blocks, decodeSide)}},
	}
}

// run registers transfers one after the other, each offered before, and checks what came.
func (d *planeDecode) run(o planeOrder) (planeAnswer, error) {
	var a planeAnswer
	for i := o.First; i < o.First+o.Count; i++ {
		ranks := kvplane.NewAggregate([]metadata.Rank{{}})
		e := d.expectation(i, o.Blocks)
		start := time.Now()
		d.rank.agent.Expect(e)
		r := <-d.rank.reports
		if v := ranks.Step(r.Report); v != kvplane.Released || r.ID != planeID(i) {
			return a, fmt.Errorf("transfer %d: %s %s: %s", i, v, r.Reason, r.Detail)
		}
		a.Release = append(a.Release, d.rank.stamp.since())
		a.Ready = append(a.Ready, r.at.Sub(start))
		if err := d.check(i, o.Blocks); err != nil {
			return a, err
		}
	}
	if t := d.rank.tcp; t != nil {
		s := t.Stats()
		a.Sockets, a.Memory = s.SocketBytes, s.MemoryBytes
	}
	return a, nil
}

// check compares the first word of every page that came with what the prefill process has there.
func (d *planeDecode) check(i, blocks int) error {
	from, to := planeBlocks(d.rank.layout, i, blocks, prefillSide), planeBlocks(d.rank.layout, i, blocks, decodeSide)
	for j := range from {
		for at := 0; at < d.rank.layout.BlockBytes; at += 4096 {
			want := planeWord(int(from[j])*d.rank.layout.BlockBytes+at, metadata.Prefill)
			if got := d.rank.word(int(to[j])*d.rank.layout.BlockBytes + at); got != want {
				return fmt.Errorf("transfer %d: block %d holds %x at %d; want %x", i, to[j], got, at, want)
			}
		}
	}
	return nil
}

// sink takes what a bare loop sends: rounds of so many bytes over so many connections, each read into the same memory
// and answered with one byte.
func (d *planeDecode) sink(ctx context.Context, o planeOrder) (planeAnswer, error) {
	ln, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return planeAnswer{}, err
	}
	go func() {
		defer ln.Close()
		for range o.Conns {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				b := make([]byte, o.Bytes/o.Conns)
				for {
					if _, err := io.ReadFull(c, b); err != nil {
						return
					}
					if _, err := c.Write(b[:1]); err != nil {
						return
					}
				}
			}()
		}
	}()
	return planeAnswer{Address: ln.Addr().String()}, nil
}

// thread starts a bare NIXL agent with NIXL's own progress thread and lets it idle.
func (d *planeDecode) thread() error {
	lib, err := nixl.Open("")
	if err != nil {
		return err
	}
	agent, err := lib.NewAgent("bench-thread", nixl.AgentConfig{Progress: true})
	if err != nil {
		return errors.Join(err, lib.Close())
	}
	backend, err := agent.NewBackend("UCX", nil)
	if err != nil {
		return errors.Join(err, agent.Close(), lib.Close())
	}
	d.ended = slices.Insert(d.ended, 0, backend.Close, agent.Close, lib.Close)
	return nil
}
