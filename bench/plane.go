package bench

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"time"

	"pdrouter/kvplane/nixl"
	"pdrouter/metadata"
)

// planeSuites measure the data plane between two processes of this machine.
func planeSuites() []Suite {
	return []Suite{bandwidthSuite(), postSuite(), notifySuite(), countSuite(), registerSuite(), releaseSuite(), outstandingSuite(), idleSuite()}
}

// planeRow is a row that a stage can have.
type planeRow struct {
	name string
	of   func(context.Context, *planeStage) (contest, error)
}

// plane opens a stage and measures those of its rows that are wanted.
func (r *Run) plane(ctx context.Context, which string, layout planeLayout, rows []planeRow) (err error) {
	var s *planeStage
	for _, row := range rows {
		if !r.wants(row.name) {
			continue
		}
		if which == "nixl" && noNIXL() != nil {
			r.report.Notes = append(r.report.Notes, fmt.Sprintf("Rows over nixl are left out: %v.", noNIXL()))
			return nil
		}
		if s == nil {
			decode, err := startPlane(ctx, r.Binary)
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
			c.name, c.where = row.name, which
			err = r.contest(ctx, c)
		}
		if err = errors.Join(err, s.endRow()); err != nil {
			return err
		}
	}
	return nil
}

// noNIXL is why there is no NIXL here.
func noNIXL() error {
	lib, err := nixl.Open("")
	if err != nil {
		return err
	}
	return lib.Close()
}

// planeStage is the two sides of some rows: prefill in this process, decode in another one.
type planeStage struct {
	which  string
	layout planeLayout
	rank   *planeRank
	decode *planeProcess
	peers  []metadata.Record
	next   int                // transfer
	bare   map[bool]*bareNIXL // by whether it has NIXL's progress thread
	ended  []func() error     // of the row
}

// planeProcess is a rank's process: it ends when it reads no more.
type planeProcess struct {
	in   io.WriteCloser
	say  *json.Encoder
	hear *json.Decoder
	pid  int
	wait func() error // its error holds its last words
}

// startPlane starts a rank's process.
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
		return nil, fmt.Errorf("bench: a rank's process: %w", err)
	}
	return newPlaneProcess(in, out, c.Process.Pid, func() error {
		if err := c.Wait(); err != nil {
			return fmt.Errorf("a rank's process: %w: %s", err, said)
		}
		return nil
	}), nil
}

func newPlaneProcess(in io.WriteCloser, out io.Reader, pid int, wait func() error) *planeProcess {
	return &planeProcess{in: in, say: json.NewEncoder(in), hear: json.NewDecoder(out), pid: pid, wait: wait}
}

// tell has the process do something and waits for its answer.
func (p *planeProcess) tell(o planeOrder) (planeAnswer, error) {
	var a planeAnswer
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

func (p *planeProcess) close() error {
	_ = p.in.Close() // it reads no more, and ends
	return p.wait()
}

// openPlaneStage opens both sides.
func openPlaneStage(decode *planeProcess, which string, layout planeLayout) (*planeStage, error) {
	s := &planeStage{which: which, layout: layout, decode: decode}
	run := uint64(time.Now().UnixNano())
	var err error
	s.rank, err = openPlaneRank(planeRankConfig{Which: which, Layout: layout, Role: metadata.Prefill, Name: "bench-prefill", Run: run},
		func() []metadata.Record { return s.peers }, make(chan planeReport, 1<<15))
	if err == nil {
		var a planeAnswer
		a, err = decode.tell(planeOrder{Do: "open", PID: os.Getpid(), Peers: []metadata.Record{s.rank.agent.Record()},
			Rank: planeRankConfig{Which: which, Layout: layout, Role: metadata.Decode, Name: "bench-decode", Run: run}})
		s.peers = a.Records
	}
	if err == nil {
		_, err = s.push(4, planeShape{Blocks: 1}) // connections, and NIXL's places
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
	err := errors.Join(s.endRow(), s.decode.close())
	if s.rank != nil {
		err = errors.Join(err, s.rank.close())
	}
	return err
}

// pushed is what some transfers one after the other were seen to take.
type pushed struct {
	planeAnswer
	posts []planePost // one for each consumer of each transfer
}

// take returns the first of n new transfers.
func (s *planeStage) take(n int) int {
	first := s.next
	s.next += n
	return first
}

// push offers n transfers, has the other side register for them one after the other, and takes in that they are sent.
func (s *planeStage) push(n int, shape planeShape) (p pushed, err error) {
	first := s.take(n)
	for i := first; i < first+n; i++ {
		s.rank.offer(i, shape, s.peers[0].Incarnation)
	}
	s.rank.stamp.take()
	if p.planeAnswer, err = s.decode.tell(planeOrder{Do: "run", First: first, Count: n, Shape: shape}); err != nil {
		return p, err
	}
	for range n {
		if err := s.rank.sent(shape); err != nil {
			return p, err
		}
	}
	if p.posts = s.rank.stamp.take(); len(p.posts) != n*s.layout.TP {
		return p, fmt.Errorf("%w: %d writes were posted; want %d", errVoid, len(p.posts), n*s.layout.TP)
	}
	return p, s.path(p.planeAnswer)
}

// path voids the run if the bytes took another way than the stage's.
func (s *planeStage) path(a planeAnswer) error {
	if s.which == "nixl" || s.which == "memory" && a.Memory > 0 && a.Sockets == 0 || s.which == "socket" && a.Sockets > 0 && a.Memory == 0 {
		return nil
	}
	return fmt.Errorf("%w: %d bytes came through sockets and %d from memory; the row measures %s", errVoid, a.Sockets, a.Memory, s.which)
}

// planeSlice is how long the transfers of one figure take together.
const planeSlice = 100 * time.Millisecond

// planeMost is how many they are at most.
const planeMost = 200

// sliced is a contender of whom n operations, as many as fill a slice, are one round.
func sliced(of string, run func(ctx context.Context, n int) ([]float64, error)) contender {
	n := 2 // until it is known how long one takes
	return contender{of: of, round: func(ctx context.Context, d time.Duration) (sample, error) {
		start := time.Now()
		figures, err := run(ctx, n)
		took := time.Since(start) / time.Duration(n)
		done := n
		n = slice(d, took)
		return sample{figures: figures, done: done}, err
	}}
}

// slice is how many operations fill a slice, of which one takes so long.
func slice(d, one time.Duration) int {
	return min(max(int(min(d, planeSlice)/max(one, 1)), 2), planeMost)
}

// pushing is pdrouter as a contender.
func (s *planeStage) pushing(shape planeShape, figures func(pushed) []float64) contender {
	return sliced(us, func(_ context.Context, n int) ([]float64, error) {
		p, err := s.push(n, shape)
		if err != nil {
			return nil, err
		}
		return figures(p), nil
	})
}

// median is the median of durations in the unit.
func median[T ~int64](d []T, unit time.Duration) float64 {
	f := make([]float64, len(d))
	for i, x := range d {
		f[i] = float64(x) / float64(unit)
	}
	return spread(f).Median
}

// rate is bytes in each of the median's time, in GB/s.
func rate(bytes int, took []time.Duration) float64 {
	return float64(bytes) / median(took, time.Nanosecond)
}
