package bench

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"pdrouter/kvplane"
	"pdrouter/kvplane/nixl"
	"pdrouter/metadata"
)

// planeLayout is the KV memory of both ranks of a plane run: one layer of blocks that never join, for their ids are
// shuffled.
type planeLayout struct {
	Blocks     int `json:"blocks"`
	BlockBytes int `json:"block_bytes"`
}

const planeBlockTokens = 16

// planeReport is an agent's report and when the agent made it.
type planeReport struct {
	kvplane.Report
	at time.Time
}

// planeRank is one rank's agent with its memory, on one side of a plane run.
type planeRank struct {
	agent   *kvplane.Agent
	memory  []byte
	layout  planeLayout
	stamp   *stamp
	tcp     *kvplane.TCP // nil over NIXL
	reports chan planeReport
	close   func() error
}

// planeTimes let nothing of a plane run end by time.
func planeTimes() kvplane.Times {
	return kvplane.Times{Lease: 10 * time.Minute, Wait: 10 * time.Minute, Deadline: 5 * time.Minute, Beat: 5 * time.Second}
}

// openPlaneRank starts an agent. which is "nixl", "memory" or "socket": the last two are tcp's paths. peer is asked
// for the other side's record.
func openPlaneRank(which string, l planeLayout, role metadata.Role, peer func(metadata.Incarnation) ([]metadata.Record, error)) (*planeRank, error) {
	var err error
	r := &planeRank{layout: l, stamp: &stamp{start: time.Now()}, reports: make(chan planeReport, 1<<15)}
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
			err = errors.Join(fmt.Errorf("bench: plane %s over %s: %w", role, which, err), r.close())
		}
	}()
	memory, free, err := kvplane.AllocateMemory(l.Blocks * l.BlockBytes)
	if err != nil {
		return nil, err
	}
	closers = append(closers, free)
	r.memory = memory
	for i := 0; i < len(memory); i += 8 { // every page is there, and every block differs
		binary.LittleEndian.PutUint64(memory[i:], planeWord(i, role))
	}
	var transport kvplane.Transport
	switch which {
	case "nixl":
		lib, openErr := nixl.Open("")
		if err = openErr; err != nil {
			return nil, err
		}
		closers = append(closers, lib.Close)
		transport = &stampedNIXL{NIXL: kvplane.NewNIXL(lib, kvplane.NIXLConfig{}), stamp: r.stamp}
	default:
		r.tcp = kvplane.NewTCP(kvplane.TCPConfig{Path: which})
		transport = &stampedTCP{TCP: r.tcp, stamp: r.stamp}
	}
	size := uint64(len(memory))
	at := kvplane.MemoryOf(memory)
	agent, err := kvplane.Open(kvplane.Config{
		Self: metadata.Record{
			Incarnation: metadata.Incarnation{Engine: "bench-" + string(role), Generation: uint64(time.Now().UnixNano())},
			Role:        role, Size: metadata.Rank{DP: 1, PP: 1, TP: 1}, Compatibility: "bench",
			Layout: metadata.Layout{
				BlockTokens: planeBlockTokens, Physical: 1, Heads: 1, HeadBytes: l.BlockBytes / planeBlockTokens, Order: metadata.HeadsFirst, DType: "u8",
				Regions: []metadata.Region{{
					Planes: 1, Base: at.Base, Length: size, Blocks: l.Blocks, BlockStride: uint64(l.BlockBytes),
					PlaneStride: uint64(l.BlockBytes), HeadStride: uint64(l.BlockBytes), TokenStride: uint64(l.BlockBytes / planeBlockTokens),
				}},
			},
		},
		Memory: []kvplane.Memory{at}, Transport: transport, Directory: planeDirectory(peer),
		Report: func(p kvplane.Report) { r.reports <- planeReport{p, time.Now()} },
		Times:  planeTimes(), Log: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		return nil, err
	}
	r.agent = agent
	closers = append(closers, agent.Close)
	return r, nil
}

// planeWord is what a side's memory holds at an offset before anything is written into it.
func planeWord(at int, role metadata.Role) uint64 {
	return uint64(at)*0x9e3779b97f4a7c15 + uint64(len(role))
}

// word is what the memory holds now.
func (r *planeRank) word(at int) uint64 { return binary.LittleEndian.Uint64(r.memory[at:]) }

// planeDirectory knows one peer.
type planeDirectory func(metadata.Incarnation) ([]metadata.Record, error)

func (d planeDirectory) Engine(_ context.Context, inc metadata.Incarnation) ([]metadata.Record, error) {
	return d(inc)
}

// planeID is the id of the i-th transfer of a run, known to both sides.
func planeID(i int) kvplane.TransferID {
	var id kvplane.TransferID
	binary.LittleEndian.PutUint64(id[:], uint64(i)+1)
	copy(id[8:], "pd-bench")
	return id
}

// planeBlocks draws the blocks of the i-th transfer: the same for the same i and side.
func planeBlocks(l planeLayout, i, n int, side uint64) []int32 {
	rng := rand.New(rand.NewPCG(uint64(i), side))
	out := make([]int32, n)
	for j, b := range rng.Perm(l.Blocks)[:n] {
		out[j] = int32(b)
	}
	return out
}

// The sides that draw blocks.
const (
	prefillSide = 1
	decodeSide  = 2
)

// stamp is when the transport last handed something to its agent.
type stamp struct {
	start time.Time
	at    atomic.Int64 // ns since start
}

func (s *stamp) mark(before, after int) {
	if after > before {
		s.at.Store(time.Since(s.start).Nanoseconds())
	}
}

// since is how long ago that was.
func (s *stamp) since() time.Duration { return time.Since(s.start) - time.Duration(s.at.Load()) }

// stampedNIXL and stampedTCP are the transports, and say when they took something in.
type stampedNIXL struct {
	*kvplane.NIXL
	stamp *stamp
}

// Poll implements kvplane.Transport.
func (t *stampedNIXL) Poll(out []kvplane.Incoming) []kvplane.Incoming {
	before := len(out)
	out = t.NIXL.Poll(out)
	t.stamp.mark(before, len(out))
	return out
}

type stampedTCP struct {
	*kvplane.TCP
	stamp *stamp
}

// Poll implements kvplane.Transport.
func (t *stampedTCP) Poll(out []kvplane.Incoming) []kvplane.Incoming {
	before := len(out)
	out = t.TCP.Poll(out)
	t.stamp.mark(before, len(out))
	return out
}
