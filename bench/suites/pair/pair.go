package pair

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"pdrouter/bench/harness"
	"pdrouter/bench/load"
	"pdrouter/bench/suites/plane"
	"pdrouter/metadata"
	"pdrouter/metadata/handshake"
)

// Suites measure what a pair of engines costs before its first request.
func Suites() []harness.Suite {
	return []harness.Suite{
		{Name: "pair/cold", Brief: "handshakes between agents: one, four at once, one after the other; requests meanwhile", Run: measureCold},
		{Name: "pair/warm", Brief: "transfers of a pair that has shaken hands, and a pair whose engine has restarted", Run: measureWarm},
	}
}

// PairTransports are what handshakes are measured over.
var PairTransports = []string{"nixl", "memory"}

// pairFleet is one prefill engine and some decode engines.
type pairFleet struct {
	which   string
	prefill *pairEngine
	decode  []*pairEngine

	mu     sync.Mutex
	next   int // transfer
	shaken map[metadata.Pair]int
}

// pairEngine is a process with one rank.
type pairEngine struct {
	mu      sync.Mutex // of process: one order at a time
	process *plane.PlaneProcess
	name    string
	role    metadata.Role
	record  metadata.Record
}

func (e *pairEngine) tell(o plane.PlaneOrder) (plane.PlaneAnswer, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.process.Tell(o)
}

// openPairs starts the processes of n pairs; start gives them.
func openPairs(which string, n int, start func() (*plane.PlaneProcess, error)) (*pairFleet, error) {
	f := &pairFleet{which: which}
	for i := range n + 1 {
		p, err := start()
		if err != nil {
			return nil, errors.Join(err, f.close())
		}
		e := &pairEngine{process: p, name: fmt.Sprintf("decode-%d", i-1), role: metadata.Decode}
		if i == 0 {
			e.name, e.role = "prefill-0", metadata.Prefill
			f.prefill = e
		} else {
			f.decode = append(f.decode, e)
		}
	}
	return f, nil
}

func (f *pairFleet) close() error {
	var errs []error
	for _, e := range append(slices.Clone(f.decode), f.prefill) {
		if e != nil {
			errs = append(errs, e.process.Close())
		}
	}
	return errors.Join(errs...)
}

// renew makes the engine's agent anew, in a new run.
func (f *pairFleet) renew(e *pairEngine) error {
	a, err := e.tell(plane.PlaneOrder{Do: "open", Rank: plane.PlaneRankConfig{
		Which: f.which, Layout: plane.PlaneLayout{Blocks: 64, BlockBytes: 4096, TP: 1}, Role: e.role, Name: e.name, Run: uint64(time.Now().UnixNano()),
	}})
	if err != nil {
		return fmt.Errorf("bench: %s: %w", e.name, err)
	}
	e.record = a.Records[0]
	return nil
}

// cold makes all agents of the first n pairs anew.
func (f *pairFleet) cold(n int) error {
	f.shaken = map[metadata.Pair]int{}
	errs := make([]error, n+1)
	var all sync.WaitGroup
	for i, e := range append([]*pairEngine{f.prefill}, f.decode[:n]...) {
		all.Go(func() { errs[i] = f.renew(e) })
	}
	all.Wait()
	return errors.Join(append(errs, f.publish(n))...)
}

// publish has the engines of the first n pairs know each other's records.
func (f *pairFleet) publish(n int) error {
	var records []metadata.Record
	for _, e := range f.decode[:n] {
		records = append(records, e.record)
		if _, err := e.tell(plane.PlaneOrder{Do: "peers", Peers: []metadata.Record{f.prefill.record}}); err != nil {
			return err
		}
	}
	_, err := f.prefill.tell(plane.PlaneOrder{Do: "peers", Peers: records})
	return err
}

// pair is the i-th pair as its engines are now.
func (f *pairFleet) pair(i int) metadata.Pair {
	return metadata.Pair{Prefill: f.prefill.record.Incarnation, Decode: f.decode[i].record.Incarnation}
}

// shake is the handshake as the registry calls it.
func (f *pairFleet) shake(_ context.Context, pair metadata.Pair) error {
	i := slices.IndexFunc(f.decode, func(e *pairEngine) bool { return e.record.Incarnation == pair.Decode })
	if i < 0 || f.prefill.record.Incarnation != pair.Prefill {
		return fmt.Errorf("%w: a handshake of %v, which is not a pair any more", load.ErrVoid, pair)
	}
	f.mu.Lock()
	f.shaken[pair]++
	f.mu.Unlock()
	_, err := f.transfer(i, 1)
	return err
}

// transfer has n transfers of one block, one after the other, and returns how long each took.
func (f *pairFleet) transfer(i, n int) (took []time.Duration, err error) {
	shape := plane.PlaneShape{Blocks: 1}
	f.mu.Lock()
	first := f.next
	f.next += n
	f.mu.Unlock()
	for k := first; k < first+n; k++ {
		if _, err := f.prefill.tell(plane.PlaneOrder{Do: "offer", First: k, Shape: shape, To: f.decode[i].record.Incarnation}); err != nil {
			return nil, err
		}
	}
	a, err := f.decode[i].tell(plane.PlaneOrder{Do: "run", First: first, Count: n, Shape: shape})
	for range n {
		if err == nil {
			_, err = f.prefill.tell(plane.PlaneOrder{Do: "sent", Shape: shape})
		}
	}
	return a.Took, err
}

// cpu is the CPU time that the engines and this process have used.
func (f *pairFleet) cpu() (time.Duration, error) {
	sum, err := harness.OwnCPU()
	for _, e := range append([]*pairEngine{f.prefill}, f.decode...) {
		used, cpuErr := harness.CPUOf("/proc", e.process.Pid)
		sum, err = sum+used, errors.Join(err, cpuErr)
	}
	return sum, err
}

// strangers makes n pairs cold, and returns a gateway's registry that shakes the fleet's hands and knows none of them.
func (f *pairFleet) strangers(n int) (*handshake.Registry, error) {
	if err := f.cold(n); err != nil {
		return nil, err
	}
	return handshake.New(handshake.Config{}, f.shake)
}

// counted voids the run unless each of the first n pairs, and no other, has shaken hands once.
func (f *pairFleet) counted(n int) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.shaken) != n {
		return fmt.Errorf("%w: %d pairs have shaken hands; want %d", load.ErrVoid, len(f.shaken), n)
	}
	for i := range n {
		if got := f.shaken[f.pair(i)]; got != 1 {
			return fmt.Errorf("%w: %d handshakes of one pair", load.ErrVoid, got)
		}
	}
	return nil
}

// pairs opens a fleet and measures rows of it.
func pairs(ctx context.Context, r *harness.Run, which string, rows func(*pairFleet) []harness.Comparison) (err error) {
	if which == "nixl" && plane.NoNIXL() != nil {
		r.Report.Notes = append(r.Report.Notes, fmt.Sprintf("Rows over nixl are left out: %v.", plane.NoNIXL()))
		return nil
	}
	if !slices.ContainsFunc(rows(nil), func(c harness.Comparison) bool { return r.Wants(c.Name) }) {
		return nil
	}
	f, err := openPairs(which, pairsAtOnce, func() (*plane.PlaneProcess, error) { return plane.StartPlane(ctx, r.Binary) })
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.close()) }()
	for _, c := range rows(f) {
		c.Where = which
		if err := r.Compare(ctx, c); err != nil {
			return err
		}
	}
	return nil
}

// pairsAtOnce is how many pairs become cold together.
const pairsAtOnce = 4
