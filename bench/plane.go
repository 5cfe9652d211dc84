package bench

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"time"

	"pdrouter/kvplane"
	"pdrouter/metadata"
)

// planeAbout says what the suite measures.
const planeAbout = "The data plane between two processes of one machine: prefill in one, decode in the other, each with one rank. Beside each figure stands a limit of the same machine, measured in turns with it in the same run. " +
	"A run is void unless every transfer was released and sent with all its bytes, a word of every page that came was compared, and the bytes were seen to take the path that the row names.\n\n" +
	"- **bandwidth**: a transfer of 1,024 blocks of 64 KiB whose ids are shuffled on both sides, from the registration until the completion is seen. Plain copy: `copy` of the same blocks in one process. Bare socket loop: one connection, one `Write`, read whole by another process into the same memory, one byte back.\n" +
	"- **register**: 16 blocks of 32 KiB, the offer at hand, from the registration until the agent has seen the completion; medians of rounds of 200.\n" +
	"- **release**: from the moment at which the transport hands the completion over until the engine's goroutine has decode released. Bare channel: one goroutine wakes another.\n" +
	"- **outstanding**: as register, with blocks of 4 KiB, while 10,000 other transfers are outstanding (4,000 registered without an offer, the others offered and queued on decode), beside 100.\n" +
	"- **idle**: CPU time of the decode process when nothing is outstanding, and when a bare NIXL agent with NIXL's progress thread lives in it too.\n"

// planeSuites measure the data plane between two processes of this machine.
func planeSuites() []Suite {
	return []Suite{{
		Name: "plane", Brief: "pushes of KV blocks between two processes beside this machine's limits", About: planeAbout, run: measurePlane,
	}}
}

func measurePlane(ctx context.Context, r *Run) error {
	for _, row := range planeRows() {
		if !r.wants(row.name) {
			continue
		}
		fmt.Fprintf(r.out, "  %-28s ", row.name)
		decode, err := startPlane(ctx, r.Binary)
		if err != nil {
			return err
		}
		s, err := openPlaneStage(decode, 2*r.Pairs, row, r.out)
		if err == nil {
			var got Row
			got, err = row.measure(ctx, s)
			got.Where = s.took
			err = errors.Join(err, s.close())
			r.report.Rows = append(r.report.Rows, got)
		}
		fmt.Fprintln(r.out)
		if err != nil {
			return fmt.Errorf("bench: %s: %w", row.name, err)
		}
	}
	return nil
}

// planeRowKind is how one row is measured.
type planeRowKind struct {
	name    string
	which   string // nixl, memory, socket
	layout  planeLayout
	blocks  int // of a transfer
	measure func(context.Context, *planeStage) (Row, error)
}

func planeRows() []planeRowKind {
	large := planeLayout{Blocks: 2048, BlockBytes: 64 << 10}
	small := planeLayout{Blocks: 1024, BlockBytes: 32 << 10}
	many := planeLayout{Blocks: 16 << 10, BlockBytes: 4 << 10} // each outstanding transfer has a block of its own
	return []planeRowKind{
		{"bandwidth nixl", "nixl", large, 1024, bandwidth("plain copy", 0.9)},
		{"bandwidth nixl (kernel)", "nixl", large, 1024, bandwidth("copy by the kernel", 0.9)},
		{"bandwidth tcp memory", "memory", large, 1024, bandwidth("plain copy", 0.5)},
		{"bandwidth tcp socket", "socket", large, 1024, bandwidth("bare socket loop", 0.8)},
		{"register nixl", "nixl", small, 16, register(100)},
		{"register tcp memory", "memory", small, 16, register(0)},
		{"release nixl", "nixl", small, 16, release(50)},
		{"release tcp memory", "memory", small, 16, release(50)},
		{"outstanding nixl", "nixl", many, 16, outstanding(100, 10_000, 2)},
		{"outstanding tcp memory", "memory", many, 16, outstanding(100, 10_000, 2)},
		{"idle nixl", "nixl", small, 16, idle},
	}
}

// planeStage is the two sides of a row: prefill in this process, decode in another one.
type planeStage struct {
	row    planeRowKind
	rounds int
	rank   *planeRank
	decode *planeProcess
	say    *json.Encoder
	hear   *json.Decoder
	peer   metadata.Record
	next   int    // transfer
	took   string // which way the bytes of the last transfers took
	out    io.Writer
}

// planeProcess is the decode side: it ends when it reads no more.
type planeProcess struct {
	in   io.WriteCloser
	out  io.Reader
	pid  int
	wait func() error // its error holds its last words
}

// startPlane starts the decode side as a process.
func startPlane(ctx context.Context, binary string) (*planeProcess, error) {
	said := &lastBytes{keep: 4096}
	c := exec.CommandContext(ctx, binary, "bench", "rank")
	c.Stderr = said
	in, err := c.StdinPipe()
	if err != nil {
		return nil, fmt.Errorf("bench: %w", err)
	}
	out, err := c.StdoutPipe()
	if err != nil {
		return nil, fmt.Errorf("bench: %w", err)
	}
	if err := c.Start(); err != nil {
		return nil, fmt.Errorf("bench: decode side: %w", err)
	}
	return &planeProcess{in: in, out: out, pid: c.Process.Pid, wait: func() error {
		if err := c.Wait(); err != nil {
			return fmt.Errorf("decode side: %w: %s", err, said)
		}
		return nil
	}}, nil
}

func openPlaneStage(decode *planeProcess, rounds int, row planeRowKind, out io.Writer) (*planeStage, error) {
	s := &planeStage{row: row, rounds: rounds, decode: decode, say: json.NewEncoder(decode.in), hear: json.NewDecoder(decode.out), out: out}
	var err error
	s.rank, err = openPlaneRank(row.which, row.layout, metadata.Prefill, func(metadata.Incarnation) ([]metadata.Record, error) {
		return []metadata.Record{s.peer}, nil
	})
	if err == nil {
		var a planeAnswer
		a, err = s.tell(planeOrder{Do: "open", Which: row.which, Layout: row.layout, Peer: s.rank.agent.Record()})
		s.peer = a.Record
	}
	if err == nil {
		_, err = s.push(4) // connections, caches, pages
	}
	if err != nil {
		return nil, errors.Join(err, s.close())
	}
	return s, nil
}

// close ends both sides.
func (s *planeStage) close() error {
	_ = s.decode.in.Close()
	err := s.decode.wait()
	if s.rank != nil {
		err = errors.Join(err, s.rank.close())
	}
	return err
}

func (s *planeStage) tell(o planeOrder) (planeAnswer, error) {
	var a planeAnswer
	if err := s.say.Encode(o); err != nil {
		return a, fmt.Errorf("decode side: %w", err)
	}
	if err := s.hear.Decode(&a); err != nil {
		return a, fmt.Errorf("decode side: %w", err)
	}
	if a.Error != "" {
		return a, fmt.Errorf("decode side: %s", a.Error)
	}
	return a, nil
}

// push offers n transfers, has the other side register for them one after the other, and takes in that they are sent.
func (s *planeStage) push(n int) (planeAnswer, error) {
	first := s.next
	s.next += n
	for i := first; i < first+n; i++ {
		s.offer(i, s.row.blocks)
	}
	a, err := s.tell(planeOrder{Do: "run", First: first, Count: n, Blocks: s.row.blocks})
	if err != nil {
		return a, err
	}
	for range n {
		r, err := s.sent()
		if err != nil {
			return a, err
		}
		if r.Reason != 0 || r.Bytes != uint64(s.row.blocks*s.row.layout.BlockBytes) {
			return a, fmt.Errorf("%w: a transfer ended as %s with %d bytes", errVoid, r.Reason, r.Bytes)
		}
	}
	s.took, err = s.path(a)
	return a, err
}

// offer makes the blocks of the i-th transfer available.
func (s *planeStage) offer(i, blocks int) {
	s.rank.agent.Offer(kvplane.Offer{
		ID: planeID(i), Peer: s.peer.Incarnation, Tokens: blocks * planeBlockTokens,
		Groups: []kvplane.BlockList{{Blocks: planeBlocks(s.row.layout, i, blocks, prefillSide)}},
	})
}

// sent waits for the next transfer whose blocks are free again.
func (s *planeStage) sent() (planeReport, error) {
	select {
	case r := <-s.rank.reports:
		if r.Kind != kvplane.Sent {
			return r, fmt.Errorf("%w: prefill is told %s", errVoid, r.Kind)
		}
		return r, nil
	case <-time.After(10 * time.Second):
		return planeReport{}, fmt.Errorf("%w: a transfer was not sent", errVoid)
	}
}

// path says which way the bytes took, and voids the run if it is another one than the row's.
func (s *planeStage) path(a planeAnswer) (string, error) {
	switch {
	case s.row.which == "nixl":
		return "nixl", nil
	case s.row.which == "memory" && a.Memory > 0 && a.Sockets == 0:
		return "memory", nil
	case s.row.which == "socket" && a.Sockets > 0 && a.Memory == 0:
		return "socket", nil
	}
	return "", fmt.Errorf("%w: %d bytes came through sockets and %d from memory; the row measures %s", errVoid, a.Sockets, a.Memory, s.row.which)
}
