package plane

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"time"

	"pdrouter/bench/harness"
	"pdrouter/bench/load"
	"pdrouter/bench/report"
	"pdrouter/kvplane/nixl"
	"pdrouter/metadata"
)

// Suites measure the data plane between two processes of this machine.
func Suites() []harness.Suite {
	return []harness.Suite{bandwidthSuite(), postSuite(), notifySuite(), countSuite(), registerSuite(), releaseSuite(), outstandingSuite(), idleSuite()}
}

// planeRow is a row that a stage can have.
type planeRow struct {
	name string
	of   func(context.Context, *planeStage) (harness.Comparison, error)
}

// plane opens a stage and measures those of its rows that are wanted.
func plane(ctx context.Context, r *harness.Run, which string, layout PlaneLayout, rows []planeRow) (err error) {
	var s *planeStage
	for _, row := range rows {
		if !r.Wants(row.name) {
			continue
		}
		if which == "nixl" && NoNIXL() != nil {
			r.Report.Notes = append(r.Report.Notes, fmt.Sprintf("Rows over nixl are left out: %v.", NoNIXL()))
			return nil
		}
		if s == nil {
			decode, err := StartPlane(ctx, r.Binary)
			if err != nil {
				return err
			}
			if s, err = openPlaneStage(decode, which, layout); err != nil {
				return err
			}
			defer func() { err = errors.Join(err, s.close()) }()
		}
		c, err := row.of(ctx, s)
		if err == nil {
			c.Name, c.Where = row.name, which
			err = r.Compare(ctx, c)
		}
		if err = errors.Join(err, s.endRow()); err != nil {
			return err
		}
	}
	return nil
}

// NoNIXL is why there is no NIXL here.
func NoNIXL() error {
	lib, err := nixl.Open("")
	if err != nil {
		return err
	}
	return lib.Close()
}

// planeStage is the two sides of some rows: prefill in this process, decode in another one.
type planeStage struct {
	which  string
	layout PlaneLayout
	rank   *planeRank
	decode *PlaneProcess
	peers  []metadata.Record
	next   int                // transfer
	bare   map[bool]*bareNIXL // by whether it has NIXL's progress thread
	ended  []func() error     // of the row
}

// PlaneProcess is a rank's process: it ends when it reads no more.
type PlaneProcess struct {
	in   io.WriteCloser
	say  *json.Encoder
	hear *json.Decoder
	Pid  int
	wait func() error // its error holds its last words
}

// StartPlane starts a rank's process.
func StartPlane(ctx context.Context, binary string) (*PlaneProcess, error) {
	said := &harness.LastBytes{Keep: 4096}
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
		return nil, fmt.Errorf("bench: a rank's process: %w", err)
	}
	return NewPlaneProcess(in, out, c.Process.Pid, func() error {
		if err := c.Wait(); err != nil {
			return fmt.Errorf("a rank's process: %w: %s", err, said)
		}
		return nil
	}), nil
}

func NewPlaneProcess(in io.WriteCloser, out io.Reader, pid int, wait func() error) *PlaneProcess {
	return &PlaneProcess{in: in, say: json.NewEncoder(in), hear: json.NewDecoder(out), Pid: pid, wait: wait}
}

// Tell has the process do something and waits for its answer.
func (p *PlaneProcess) Tell(o PlaneOrder) (PlaneAnswer, error) {
	var a PlaneAnswer
	if err := p.say.Encode(o); err != nil {
		return a, fmt.Errorf("a rank's process: %w", err)
	}
	if err := p.hear.Decode(&a); err != nil {
		return a, fmt.Errorf("a rank's process: %w", err)
	}
	if a.Error != "" {
		return a, fmt.Errorf("a rank's process: %s", a.Error)
	}
	return a, nil
}

func (p *PlaneProcess) Close() error {
	_ = p.in.Close() // it reads no more, and ends
	return p.wait()
}

// openPlaneStage opens both sides.
func openPlaneStage(decode *PlaneProcess, which string, layout PlaneLayout) (*planeStage, error) {
	s := &planeStage{which: which, layout: layout, decode: decode}
	run := uint64(time.Now().UnixNano())
	var err error
	s.rank, err = openPlaneRank(PlaneRankConfig{Which: which, Layout: layout, Role: metadata.Prefill, Name: "bench-prefill", Run: run},
		func() []metadata.Record { return s.peers }, make(chan planeReport, 1<<15))
	if err == nil {
		var a PlaneAnswer
		a, err = decode.Tell(PlaneOrder{Do: "open", PID: os.Getpid(), Peers: []metadata.Record{s.rank.agent.Record()},
			Rank: PlaneRankConfig{Which: which, Layout: layout, Role: metadata.Decode, Name: "bench-decode", Run: run}})
		s.peers = a.Records
	}
	if err == nil {
		_, err = s.push(4, PlaneShape{Blocks: 1}) // connections, and NIXL's places
	}
	if err != nil {
		return nil, fmt.Errorf("bench: plane over %s: %w", which, errors.Join(err, s.close()))
	}
	return s, nil
}

// endRow gives back what a row has opened.
func (s *planeStage) endRow() error {
	var errs []error
	for _, f := range s.ended {
		errs = append(errs, f())
	}
	s.ended = nil
	for thread := range s.bare {
		errs = append(errs, s.closeBare(thread))
	}
	return errors.Join(errs...)
}

// close ends both sides.
func (s *planeStage) close() error {
	err := errors.Join(s.endRow(), s.decode.Close())
	if s.rank != nil {
		err = errors.Join(err, s.rank.close())
	}
	return err
}

// pushed is what some transfers one after the other were seen to take.
type pushed struct {
	PlaneAnswer
	posts []planePost // one for each consumer of each transfer
}

// take returns the first of n new transfers.
func (s *planeStage) take(n int) int {
	first := s.next
	s.next += n
	return first
}

// push offers n transfers, has the other side register for them one after the other, and takes in that they are sent.
func (s *planeStage) push(n int, shape PlaneShape) (p pushed, err error) {
	first := s.take(n)
	for i := first; i < first+n; i++ {
		s.rank.offer(i, shape, s.peers[0].Incarnation)
	}
	s.rank.stamp.take()
	if p.PlaneAnswer, err = s.decode.Tell(PlaneOrder{Do: "run", First: first, Count: n, Shape: shape}); err != nil {
		return p, err
	}
	for range n {
		if err := s.rank.sent(shape); err != nil {
			return p, err
		}
	}
	if p.posts = s.rank.stamp.take(); len(p.posts) != n*s.layout.TP {
		return p, fmt.Errorf("%w: %d writes were posted; want %d", load.ErrVoid, len(p.posts), n*s.layout.TP)
	}
	return p, s.path(p.PlaneAnswer)
}

// path voids the run if the bytes took another way than the stage's.
func (s *planeStage) path(a PlaneAnswer) error {
	if s.which == "nixl" || s.which == "memory" && a.Memory > 0 && a.Sockets == 0 || s.which == "socket" && a.Sockets > 0 && a.Memory == 0 {
		return nil
	}
	return fmt.Errorf("%w: %d bytes came through sockets and %d from memory; the row measures %s", load.ErrVoid, a.Sockets, a.Memory, s.which)
}

// planeSlice is how long the transfers of one figure take together.
const planeSlice = 100 * time.Millisecond

// planeMost is how many they are at most.
const planeMost = 200

// sliced is a system of whom n operations, as many as fill a slice, are one round.
func sliced(of string, run func(ctx context.Context, n int) ([]float64, error)) harness.System {
	n := 2 // until it is known how long one takes
	return harness.System{Of: of, Round: func(ctx context.Context, d time.Duration) (harness.Sample, error) {
		start := time.Now()
		figures, err := run(ctx, n)
		took := time.Since(start) / time.Duration(n)
		done := n
		n = slice(d, took)
		return harness.Sample{Figures: figures, Done: done}, err
	}}
}

// slice is how many operations fill a slice, of which one takes so long.
func slice(d, one time.Duration) int {
	return min(max(int(min(d, planeSlice)/max(one, 1)), 2), planeMost)
}

// pushing is pdrouter as a system.
func (s *planeStage) pushing(shape PlaneShape, figures func(pushed) []float64) harness.System {
	return sliced(report.Us, func(_ context.Context, n int) ([]float64, error) {
		p, err := s.push(n, shape)
		if err != nil {
			return nil, err
		}
		return figures(p), nil
	})
}

// Median is the median of durations in the unit.
func Median[T ~int64](d []T, unit time.Duration) float64 {
	f := make([]float64, len(d))
	for i, x := range d {
		f[i] = float64(x) / float64(unit)
	}
	return report.SpreadOf(f).Median
}

// rate is bytes in each of the median's time, in GB/s.
func rate(bytes int, took []time.Duration) float64 {
	return float64(bytes) / Median(took, time.Nanosecond)
}
