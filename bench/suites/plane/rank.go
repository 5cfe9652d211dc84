package plane

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"time"

	"pdrouter/bench/load"
	"pdrouter/kvplane"
	"pdrouter/kvplane/agent"
	"pdrouter/kvplane/memory"
	"pdrouter/kvplane/nixl"
	"pdrouter/kvplane/transport"
	"pdrouter/kvplane/transport/nixltransport"
	"pdrouter/kvplane/transport/tcp"
	"pdrouter/metadata"
)

// PlaneLayout is the KV memory of a plane run: one layer, whose blocks the consumers share by heads.
type PlaneLayout struct {
	Blocks     int `json:"blocks"`
	BlockBytes int `json:"block_bytes"` // of a whole block, as prefill holds it
	TP         int `json:"tp"`          // consumers, each with one head
}

const planeBlockTokens = 16

// PlaneShape is the blocks of one transfer.
type PlaneShape struct {
	Blocks     int  `json:"blocks"`
	Neighbours bool `json:"neighbours,omitempty"` // their ids grow by one on both sides; else they are shuffled, and hardly two join
}

// PlaneRankConfig is one rank of a plane run.
type PlaneRankConfig struct {
	Which  string        `json:"which"` // nixl, memory, socket: the last two are tcp's paths
	Layout PlaneLayout   `json:"layout"`
	Role   metadata.Role `json:"role"`
	Name   string        `json:"name"` // of its engine, and its run
	Run    uint64        `json:"run"`
	rank   int           // of decode's TP ranks
}

// planeReport is an agent's report and when the agent made it.
type planeReport struct {
	kvplane.Report
	at time.Time
}

// planeRank is one rank's agent with its memory, on one side of a plane run.
type planeRank struct {
	cfg     PlaneRankConfig
	agent   *agent.Agent
	memory  []byte
	stamp   *stamp
	tcp     *tcp.Transport // nil over NIXL
	reports chan planeReport
	close   func() error
}

// planeTimes let nothing of a plane run end by time.
func planeTimes() kvplane.Times {
	return kvplane.Times{Lease: 10 * time.Minute, Wait: 10 * time.Minute, Deadline: 5 * time.Minute, Beat: 5 * time.Second}
}

// blockBytes is the size of a block in the rank's own memory.
func (c PlaneRankConfig) blockBytes() int {
	if c.Role == metadata.Decode {
		return c.Layout.BlockBytes / c.Layout.TP
	}
	return c.Layout.BlockBytes
}

// record is what the rank publishes, but for what its agent adds.
func (c PlaneRankConfig) record(at memory.Region) metadata.Record {
	l := c.Layout
	size, heads, tp := c.blockBytes(), l.TP, 1
	if c.Role == metadata.Decode {
		heads, tp = 1, l.TP
	}
	return metadata.Record{
		Incarnation: metadata.Incarnation{Engine: c.Name, Generation: c.Run},
		Role:        c.Role, Rank: metadata.Rank{TP: c.rank}, Size: metadata.Rank{DP: 1, PP: 1, TP: tp}, Compatibility: "bench",
		Layout: metadata.Layout{
			BlockTokens: planeBlockTokens, Physical: 1, Heads: l.TP, HeadBytes: l.BlockBytes / l.TP / planeBlockTokens, Order: metadata.HeadsFirst, DType: "u8",
			Regions: []metadata.Region{{
				Planes: 1, Base: at.Base, Length: at.Length, Blocks: l.Blocks, BlockStride: uint64(size),
				PlaneStride: uint64(size), HeadStride: uint64(size / heads), TokenStride: uint64(size / heads / planeBlockTokens),
			}},
		},
	}
}

// openPlaneRank starts an agent. peers is asked for the records of the other side's engines; what the agent reports goes to reports.
func openPlaneRank(cfg PlaneRankConfig, peers func() []metadata.Record, reports chan planeReport) (_ *planeRank, err error) {
	r := &planeRank{cfg: cfg, stamp: &stamp{start: time.Now()}, reports: reports}
	closers := []func() error{}
	r.close = func() error {
		var errs []error
		for i := range closers {
			errs = append(errs, closers[len(closers)-1-i]())
		}
		return errors.Join(errs...)
	}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("bench: plane %s over %s: %w", cfg.Role, cfg.Which, err), r.close())
		}
	}()
	room, free, err := memory.Allocate(cfg.Layout.Blocks * cfg.blockBytes())
	if err != nil {
		return nil, err
	}
	closers = append(closers, free)
	r.memory = room
	for i := 0; i < len(room); i += 8 { // every page is there, and every block differs
		binary.LittleEndian.PutUint64(room[i:], planeWord(i, cfg.Role))
	}
	var transport transport.Transport
	switch cfg.Which {
	case "nixl":
		lib, openErr := nixl.Open("")
		if err = openErr; err != nil {
			return nil, err
		}
		closers = append(closers, lib.Close)
		transport = &stampedNIXL{Transport: nixltransport.New(lib, nixltransport.Config{}), stamp: r.stamp}
	default:
		r.tcp = tcp.New(tcp.Config{Path: cfg.Which})
		transport = &stampedTCP{Transport: r.tcp, stamp: r.stamp}
	}
	at := memory.Of(room)
	agent, err := agent.Open(agent.Config{
		Self: cfg.record(at), Memory: []memory.Region{at}, Transport: transport, Directory: planeDirectory(peers),
		Report: func(p kvplane.Report) { reports <- planeReport{p, time.Now()} },
		Times:  planeTimes(), Log: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		return nil, err
	}
	r.agent = agent
	closers = append(closers, agent.Close)
	return r, nil
}

// offer makes the blocks of the i-th transfer available.
func (r *planeRank) offer(i int, shape PlaneShape, to metadata.Incarnation) {
	r.agent.Offer(kvplane.Offer{
		ID: planeID(i), Peer: to, Tokens: shape.Blocks * planeBlockTokens,
		Groups: []kvplane.BlockList{{Blocks: planeBlocks(r.cfg.Layout, i, shape, prefillSide)}},
	})
}

// sent waits for the next transfer whose blocks are free again, and voids the run if they are not all written.
func (r *planeRank) sent(shape PlaneShape) error {
	got, err := r.freed()
	if err == nil && (got.Reason != 0 || got.Bytes != uint64(shape.Blocks*r.cfg.Layout.BlockBytes)) {
		err = fmt.Errorf("%w: a transfer ended as %s with %d bytes", load.ErrVoid, got.Reason, got.Bytes)
	}
	return err
}

// freed waits for the next transfer whose blocks are free again, however it ended.
func (r *planeRank) freed() (planeReport, error) {
	select {
	case got := <-r.reports:
		if got.Kind != kvplane.Sent {
			return got, fmt.Errorf("%w: prefill is told %s", load.ErrVoid, got.Kind)
		}
		return got, nil
	case <-time.After(10 * time.Second):
		return planeReport{}, fmt.Errorf("%w: a transfer was not sent", load.ErrVoid)
	}
}

// planeWord is what a side's memory holds at an offset before anything is written into it; never 0.
func planeWord(at int, role metadata.Role) uint64 {
	return uint64(at)*0x9e3779b97f4a7c15 + uint64(len(role))
}

// pages calls f with the places that the bench looks at in the blocks of the i-th transfer, in decode's memory and in
// prefill's: the first word of every page.
func (r *planeRank) pages(i int, shape PlaneShape, f func(to, from int)) {
	l, size := r.cfg.Layout, r.cfg.blockBytes()
	from, to := planeBlocks(l, i, shape, prefillSide), planeBlocks(l, i, shape, decodeSide)
	for j := range from {
		for at := 0; at < size; at += 4096 {
			f(int(to[j])*size+at, int(from[j])*l.BlockBytes+r.cfg.rank*size+at)
		}
	}
}

// clear makes sure that what a transfer is to bring is not there already.
func (r *planeRank) clear(i int, shape PlaneShape) {
	r.pages(i, shape, func(to, _ int) { binary.LittleEndian.PutUint64(r.memory[to:], 0) })
}

// check compares what came with what the prefill process has there.
func (r *planeRank) check(i int, shape PlaneShape) (err error) {
	r.pages(i, shape, func(to, from int) {
		if got, want := binary.LittleEndian.Uint64(r.memory[to:]), planeWord(from, metadata.Prefill); got != want && err == nil {
			err = fmt.Errorf("transfer %d: rank %d holds %x at %d; want %x", i, r.cfg.rank, got, to, want)
		}
	})
	return err
}

// planeDirectory knows the engines of the other side.
type planeDirectory func() []metadata.Record

func (d planeDirectory) Engine(_ context.Context, inc metadata.Incarnation) (of []metadata.Record, err error) {
	for _, r := range d() {
		if r.Incarnation == inc {
			of = append(of, r)
		}
	}
	return of, nil
}

// planeID is the id of the i-th transfer of a run, known to both sides.
func planeID(i int) kvplane.TransferID {
	var id kvplane.TransferID
	binary.LittleEndian.PutUint64(id[:], uint64(i)+1)
	copy(id[8:], "pd-bench")
	return id
}

// planeBlocks draws the blocks of the i-th transfer: the same for the same i and side.
func planeBlocks(l PlaneLayout, i int, shape PlaneShape, side uint64) []int32 {
	rng := rand.New(rand.NewPCG(uint64(i), side))
	out := make([]int32, shape.Blocks)
	if shape.Neighbours {
		first := rng.IntN(l.Blocks - shape.Blocks + 1)
		for j := range out {
			out[j] = int32(first + j)
		}
		return out
	}
	for j, b := range rng.Perm(l.Blocks)[:shape.Blocks] {
		out[j] = int32(b)
	}
	return out
}

// The sides that draw blocks.
const (
	prefillSide = 1
	decodeSide  = 2
)
