package plane

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"

	"pdrouter/kvplane"
	"pdrouter/kvplane/sched"
	"pdrouter/metadata"
)

// PlaneOrder is what the measuring process tells a rank's process of a plane run, one JSON value a line.
type PlaneOrder struct {
	Do     string               `json:"do"` // open, peers, offer, sent, run, copy, hold, drop, sink, bare, ask, echo, bare-close, fan, fanned, fan-close
	Rank   PlaneRankConfig      `json:"rank,omitzero"`
	Peers  []metadata.Record    `json:"peers,omitempty"`
	To     metadata.Incarnation `json:"to,omitzero"`     // offer
	PID    int                  `json:"pid,omitempty"`   // of the other side
	First  int                  `json:"first,omitempty"` // transfer
	Count  int                  `json:"count,omitempty"`
	Shape  PlaneShape           `json:"shape,omitzero"`
	Single bool                 `json:"single,omitempty"` // copy: a call for each block
	Bytes  int                  `json:"bytes,omitempty"`  // sink: of one round
	Thread bool                 `json:"thread,omitempty"` // bare: with NIXL's progress thread
	Blob   []byte               `json:"blob,omitempty"`   // bare: what the other side's agent tells of itself
}

// PlaneAnswer is what it answers, one JSON value a line.
type PlaneAnswer struct {
	Error    string            `json:"error,omitempty"`
	Records  []metadata.Record `json:"records,omitempty"`
	Address  string            `json:"address,omitempty"`
	Blob     []byte            `json:"blob,omitempty"`
	Blobs    [][]byte          `json:"blobs,omitempty"`    // fan: of each rank's agent
	Took     []time.Duration   `json:"took,omitempty"`     // run: from registration until the agents have seen all completions; else of each round
	Release  []time.Duration   `json:"release,omitempty"`  // from the last completion taken in to decode released
	Seen     []int64           `json:"seen,omitempty"`     // when the last completion was seen, in ns since 1970
	Released []int64           `json:"released,omitempty"` // when decode was released
	Sockets  uint64            `json:"sockets,omitempty"`  // bytes that came through sockets so far
	Memory   uint64            `json:"memory,omitempty"`   // bytes copied out of the writer's memory so far
}

// Serve is a rank's process of a plane run. It does what in says until it ends.
func Serve(ctx context.Context, in io.Reader, out io.Writer) error {
	d := &planeDecode{}
	defer d.stop()
	read, write := json.NewDecoder(in), json.NewEncoder(out)
	for {
		var o PlaneOrder
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

// planeDecode is the state of the process: the ranks of one engine, mostly decode's.
type planeDecode struct {
	ranks   []*planeRank
	reports chan planeReport   // of all of them
	pid     int                // of the other side
	bare    map[bool]*bareNIXL // by whether it has NIXL's progress thread
	fan     *bareFan

	mu    sync.Mutex
	peers []metadata.Record
}

func (d *planeDecode) stop() {
	for _, b := range d.bare {
		_ = b.close() // the process ends anyway
	}
	_ = d.endFan()
	for _, r := range d.ranks {
		_ = r.close()
	}
	d.ranks, d.bare = nil, nil
}

func (d *planeDecode) do(ctx context.Context, o PlaneOrder) (a PlaneAnswer, err error) {
	if (o.Do == "ask" || o.Do == "echo") && d.bare[o.Thread] == nil {
		return a, fmt.Errorf("%s before a bare agent was opened", o.Do)
	}
	if o.Do == "fanned" && d.fan == nil {
		return a, errors.New("fanned before a fan was opened")
	}
	if len(d.ranks) == 0 && o.Do != "open" && o.Do != "bare" {
		return a, fmt.Errorf("%s before a rank was opened", o.Do)
	}
	switch o.Do {
	case "open":
		return d.open(o)
	case "peers":
		d.meets(o.Peers)
		return a, nil
	case "offer":
		d.ranks[0].offer(o.First, o.Shape, o.To)
		return a, nil
	case "sent":
		return a, d.ranks[0].sent(o.Shape)
	case "run":
		return d.run(o)
	case "copy":
		return d.copy(o)
	case "hold":
		return a, d.hold(o)
	case "drop":
		return a, d.drop(o)
	case "sink":
		return d.sink(ctx, o)
	case "bare":
		return d.openBare(o)
	case "ask":
		return d.ask(o)
	case "echo":
		a.Took, err = d.bare[o.Thread].trips(o.Count)
		return a, err
	case "fan":
		return d.openFan(o)
	case "fanned":
		return d.fanned(o)
	case "fan-close":
		return a, d.endFan()
	case "bare-close":
		if b := d.bare[o.Thread]; b != nil {
			err = b.close()
		}
		delete(d.bare, o.Thread)
		return a, err
	}
	return a, fmt.Errorf("%q is no order", o.Do)
}

// open starts the engine's ranks; those that it had before are gone.
func (d *planeDecode) open(o PlaneOrder) (a PlaneAnswer, err error) {
	d.stop()
	d.meets(o.Peers)
	d.pid, d.reports = o.PID, make(chan planeReport, 1<<15)
	ranks := 1
	if o.Rank.Role == metadata.Decode {
		ranks = o.Rank.Layout.TP
	}
	for i := range ranks {
		o.Rank.rank = i
		r, err := openPlaneRank(o.Rank, func() []metadata.Record { return d.known() }, d.reports)
		if err != nil {
			return a, err
		}
		d.ranks = append(d.ranks, r)
		a.Records = append(a.Records, r.agent.Record())
	}
	return a, nil
}

// meets notes the records of the engines on the other side; known returns them, also to the agents' look-ups.
func (d *planeDecode) meets(peers []metadata.Record) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.peers = peers
}

func (d *planeDecode) known() []metadata.Record {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.peers
}

// expectation is what a rank of decode registers for the i-th transfer.
func (d *planeDecode) expectation(i int, shape PlaneShape) kvplane.Expectation {
	return kvplane.Expectation{
		ID: planeID(i), Peer: d.known()[0].Incarnation, Need: [2]int{0, shape.Blocks * planeBlockTokens},
		Groups: []kvplane.BlockList{{Blocks: planeBlocks(d.ranks[0].cfg.Layout, i, shape, decodeSide)}},
	}
}

// run registers transfers one after the other, each offered before, and checks what came.
func (d *planeDecode) run(o PlaneOrder) (a PlaneAnswer, err error) {
	var names []metadata.Rank
	for _, r := range d.ranks {
		names = append(names, r.agent.Record().Rank)
	}
	for i := o.First; i < o.First+o.Count; i++ {
		ranks, e := sched.NewRankBarrier(names), d.expectation(i, o.Shape)
		for _, r := range d.ranks {
			r.clear(i, o.Shape)
		}
		start := time.Now()
		for _, r := range d.ranks {
			r.agent.Expect(e)
		}
		var seen time.Time
		var last *planeRank
		v := sched.Nothing
		for n := 0; n < len(d.ranks) && v == sched.Nothing; n++ {
			got := <-d.reports
			if got.at.After(seen) {
				seen, last = got.at, d.ranks[got.Rank.TP]
			}
			if v = ranks.Step(got.Report); v != sched.Nothing && v != sched.Released || got.ID != planeID(i) {
				return a, fmt.Errorf("transfer %d: %s %s: %s", i, v, got.Reason, got.Detail)
			}
		}
		if v != sched.Released {
			return a, fmt.Errorf("transfer %d: %d reports and decode is not released", i, len(d.ranks))
		}
		a.Release, a.Released = append(a.Release, last.stamp.since()), append(a.Released, time.Now().UnixNano())
		a.Took, a.Seen = append(a.Took, seen.Sub(start)), append(a.Seen, seen.UnixNano())
		for _, r := range d.ranks {
			if err := r.check(i, o.Shape); err != nil {
				return a, err
			}
		}
	}
	for _, r := range d.ranks {
		if r.tcp != nil {
			s := r.tcp.Stats()
			a.Sockets, a.Memory = a.Sockets+s.SocketBytes, a.Memory+s.MemoryBytes
		}
	}
	return a, nil
}

// sink takes what a bare loop sends: rounds of so many bytes over one connection, each read into the same memory and
// answered with one byte.
func (d *planeDecode) sink(ctx context.Context, o PlaneOrder) (PlaneAnswer, error) {
	ln, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return PlaneAnswer{}, err
	}
	go func() {
		c, err := ln.Accept()
		ln.Close()
		if err != nil {
			return
		}
		defer c.Close()
		b := make([]byte, o.Bytes)
		for err == nil {
			if _, err = io.ReadFull(c, b); err == nil {
				_, err = c.Write(b[:1])
			}
		}
	}()
	return PlaneAnswer{Address: ln.Addr().String()}, nil
}
