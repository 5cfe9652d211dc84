package bench

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"time"

	"pdrouter/bench/fake"
	"pdrouter/bench/harness"
	"pdrouter/bench/report"
	"pdrouter/bench/suites/overhead"
	"pdrouter/bench/suites/replay"
	"pdrouter/policies"
	"pdrouter/policies/prefixes"
)

// prefixSuite measures the policy that looks at prefixes.
func prefixSuite() harness.Suite {
	return harness.Suite{Name: "route/prefix", Brief: "policy prefix: lookups, memory, and a gateway with it", Run: func(ctx context.Context, r *harness.Run) error {
		for _, size := range []int{1 << 10, 16 << 10, 220 << 10} {
			if err := byPrefix(ctx, r, size); err != nil {
				return err
			}
		}
		r.SetRounds(2 * r.Rounds) // what follows is short
		for _, l := range prefixLookups() {
			err := r.Compare(ctx, l.contest())
			l.close()
			if err != nil {
				return err
			}
		}
		return nil
	}}
}

// prefixLookup is an index, its engines, and prompts that it is full of.
type prefixLookup struct {
	blocks, engines, size int // of the index; of a prompt, in bytes

	index   *prefixes.Index
	holders []prefixes.Holder
	fleet   policies.Fleet
	by      *policies.Policy
	prompt  []byte
	shared  int // blocks at its beginning, which all prompts have
	prompts int // that fill the index
	next    int
	chain   []uint64
	pieces  []int32
	took    float64 // bytes of heap
}

// prefixLookups are all that are measured: prompts of 16 KB at each size, and longer ones at one.
func prefixLookups() []*prefixLookup {
	var all []*prefixLookup
	for _, blocks := range []int{10_000, 100_000, 1_000_000} {
		for _, engines := range []int{10, 100, 1000} {
			all = append(all, &prefixLookup{blocks: blocks, engines: engines, size: 16 << 10})
		}
	}
	return append(all, &prefixLookup{blocks: 1_000_000, engines: 100, size: 220 << 10})
}

func (l *prefixLookup) name() string {
	return fmt.Sprintf("%d KB, %d blocks, %d engines", l.size>>10, l.blocks, l.engines)
}

// open makes the index and gives it twice as many blocks as it may hold.
func (l *prefixLookup) open() (err error) {
	before := heapNow()
	l.index = prefixes.New(l.blocks)
	role := policies.Role{Policy: replay.ByPrefix}
	if l.by, err = policies.New(policies.Config{Default: policies.Choosing{Decode: role}}); err != nil {
		return err
	}
	for i := range l.engines {
		l.holders = append(l.holders, l.index.Join())
		l.fleet.Decode = append(l.fleet.Decode, policies.Engine{Name: fmt.Sprint("engine-", i), Usable: true, InFlight: i * 7 % 13})
	}
	l.prompt = []byte(strings.Repeat("a", l.size))
	l.chain, _ = l.index.Chain(nil, 0, l.prompt)
	l.shared = len(l.chain) / 4
	l.prompts, l.pieces = l.blocks/(len(l.chain)-l.shared), make([]int32, 0, 64+l.engines)
	for range 2 * l.prompts {
		if _, err := l.look(); err != nil {
			return err
		}
	}
	l.took = heapNow() - before
	return nil
}

// close lets go of the index.
func (l *prefixLookup) close() { *l = prefixLookup{blocks: l.blocks, engines: l.engines, size: l.size} }

// look is what a request does: it looks for the next prompt, chooses, and notes who was given it. It returns how many blocks the one that
// was chosen had.
func (l *prefixLookup) look() (int, error) {
	l.next = (l.next + 1) % l.prompts
	binary.LittleEndian.PutUint64(l.prompt[prefixes.Bytes(l.shared):], uint64(l.next))
	l.chain, _ = l.index.Chain(l.chain[:0], l.index.Key(0, fake.Model), l.prompt)
	l.pieces = l.index.Find(l.chain, l.pieces)
	for i, h := range l.holders {
		l.fleet.Decode[i].Cached = prefixes.Bytes(int(l.pieces[h])) / 4
	}
	c := l.by.Choose(policies.Request{Model: fake.Model, Unsplittable: policies.Aggregated}, l.fleet, policies.Draw{Turn: uint64(l.next)})
	if c.Decode < 0 {
		return 0, errors.New("bench: nothing was chosen: " + string(c.Reason))
	}
	l.index.Note(l.chain, l.holders[c.Decode])
	return int(l.pieces[l.holders[c.Decode]]), nil
}

// contest is the lookup beside round robin, with what its index takes.
func (l *prefixLookup) contest() harness.Comparison {
	const usual = "round_robin"
	words := (l.engines + 63) / 64
	bound := 1.07 * float64(24+8+8*words) // what prefixes.New says, and what Go adds to round up
	row := harness.Versus{Unit: "µs", Slice: 20 * time.Millisecond}
	n, m := 0, 0
	return harness.Comparison{Name: l.name(), Metrics: []harness.Metric{
		{What: "lookup and choice", Unit: "µs"},
		{What: "memory a block", Unit: "bytes", Goals: harness.AtMost(bound)},
		{What: "allocated a lookup", Unit: "bytes", Goals: []report.Goal{{Plus: 0.5}}}, // what runs beside it is counted too
		{What: "blocks at its fullest", Unit: "% of the bound", Goals: harness.AtMost(100)},
	}, Systems: []harness.System{
		{Of: report.Us, Round: func(context.Context, time.Duration) (s harness.Sample, err error) {
			if l.index == nil {
				if err := l.open(); err != nil {
					return harness.Sample{}, err
				}
			}
			run := func(n int) error {
				for range n {
					if _, err := l.look(); err != nil {
						return err
					}
				}
				return nil
			}
			if n == 0 {
				if n, err = row.Count(run); err != nil {
					return harness.Sample{}, err
				}
			}
			before := allocated()
			took, err := row.Time(run, n)
			after, stats := allocated(), l.index.Stats()
			return harness.Sample{Done: n, Figures: []float64{
				report.InMicros(took) / float64(n), l.took / float64(l.blocks), float64(after-before) / float64(n), 100 * float64(stats.Links) / float64(stats.Bound),
			}}, err
		}},
		{Of: usual, Only: "lookup and choice", Round: func(context.Context, time.Duration) (harness.Sample, error) {
			run, err := choices(usual, 2*l.engines)
			if err != nil {
				return harness.Sample{}, err
			}
			if m == 0 {
				if m, err = row.Count(run); err != nil {
					return harness.Sample{}, err
				}
			}
			took, err := row.Time(run, m)
			return harness.Sample{Done: m, Figures: []float64{report.InMicros(took) / float64(m), 0, 0, 0}}, err
		}},
	}}
}

// heapNow is the bytes of the heap that are in use, after a collection.
func heapNow() float64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return float64(m.HeapAlloc)
}

// allocated is the bytes that were ever allocated.
func allocated() uint64 {
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.TotalAlloc
}

// byPrefix measures a gateway whose policy is prefix beside one that has round robin, with bodies of so many bytes.
func byPrefix(ctx context.Context, r *harness.Run, size int) error {
	many := 32
	if size > 100<<10 {
		many = 16
	}
	row := overhead.RowOf("vllm-nixl-pull", harness.AloneCPU, size, many, false)
	row.Name = fmt.Sprintf("gateway, %d KB c=%d", size>>10, many)
	if !r.Wants(row.Name) {
		return nil
	}
	const usual = "round_robin"
	ours, beside := gatewayBy(report.Us, replay.ByPrefix), gatewayBy(usual, usual)
	s, err := r.Open(ctx, harness.Setup{Connector: row.Connector, Where: row.Where, Prefill: 4, Decode: 4, Targets: []harness.Target{ours, beside}})
	if err != nil {
		return err
	}
	defer s.Close()
	return r.Compare(ctx, s.Comparison(row.Name, row.Load,
		harness.Reads{Metric: harness.Metric{What: overhead.RateMetric, Unit: "1/s", Goals: []report.Goal{{Beside: usual, Times: 0.9, AtLeast: true}}}, Of: harness.Measured.Rate},
		harness.Reads{Metric: harness.Metric{What: overhead.CpuMetric, Unit: "µs"}, Of: harness.Measured.Micros}))
}

// gatewayBy is pdrouter with a policy for prefill, round_robin for decode.
func gatewayBy(of, policy string) harness.Target {
	x := harness.GatewayTarget()
	x.Of = of
	x.Start = func(ctx context.Context, s *harness.Stage) (*harness.Child, error) {
		with := *s
		with.Settings += fmt.Sprintf("policy: {default: {prefill: %s, decode: round_robin}}\n", policy)
		return harness.StartGateway(ctx, &with)
	}
	return x
}
