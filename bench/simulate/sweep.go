package simulate

import (
	"cmp"
	"context"
	"fmt"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"time"

	"pdrouter/bench/load"
	"pdrouter/bench/sim"
	"pdrouter/policies"
)

// Mix is a trace with prompts and answers of other lengths.
type Mix struct {
	Name           string
	Prompt, Answer float64   // so many times the trace's tokens: of each prompt its beginning
	Rates          []float64 // requests a second
}

// Mixes are those that are replayed unless others are asked for. Their rates are those of four engines, from engines with little to do to more than
// any of them can do.
var Mixes = []Mix{
	{"recorded", 1, 1, []float64{.5, 1, 1.5, 2, 2.5, 3}},
	{"prompts/4", .25, 1, []float64{2.5, 5, 7.5, 10, 12.5, 15}},
	{"answers*4", 1, 4, []float64{.5, 1, 1.5, 2, 2.5, 3}},
}

// Of is the trace with the mix's lengths.
func (m Mix) Of(trace []load.Request) []load.Request {
	out := make([]load.Request, len(trace))
	for i, t := range trace {
		t.Input, t.Output = max(1, int(float64(t.Input)*m.Prompt)), max(1, int(float64(t.Output)*m.Answer))
		t.Blocks = t.Blocks[:(t.Input-1)/load.TraceBlock+1]
		out[i] = t
	}
	return out
}

// System is a layout and the policy that chooses its engines.
type System struct {
	Layout Layout
	Name   string // of the policy
	Policy *policies.Policy
	Queue  bool // requests wait in front of the engines, as with by_objective of the queue
}

// Row is what a system has come to with a mix at a rate, in the mean of seeds. Times are in seconds.
type Row struct {
	Mix        string  `json:"mix"`
	Rate       float64 `json:"rate"`   // requests a second
	Window     float64 `json:"window"` // the time in which they come: the sweep's, or as long as the trace lasts at this rate
	Layout     string  `json:"layout"`
	Policy     string  `json:"policy"`
	Goodput    float64 `json:"goodput"`    // requests that kept their objective, for each second of the window
	Attainment float64 `json:"attainment"` // the part of the requests that kept it
	TTFTP50    float64 `json:"ttft_p50"`
	TTFTP99    float64 `json:"ttft_p99"`
	ITLP99     float64 `json:"itl_p99"`     // between any two tokens
	Refused    float64 `json:"refused"`     // the part of the requests that waited too long for engines to have room
	RetryRight float64 `json:"retry_right"` // of those of them that were looked at, the part that was told the right time to come back; 0 if none was refused
	Split      float64 `json:"split"`       // the part of the requests that two engines served
	Error      float64 `json:"ttft_error"`  // by which part times to the first token differ from what was predicted, after the first 200 requests; 0: nothing was
	Requests   int     `json:"requests"`    // of all seeds
	Seeds      int     `json:"seeds"`
}

// Sweep is what is replayed: each system with each mix at each rate, with each seed's choice of the trace's sessions.
type Sweep struct {
	Trace   []load.Request
	Mixes   []Mix
	Systems []System
	Seeds   int
	Window  time.Duration // of the engines' time, in which requests come
	Costs   sim.Costs
	SLO     load.SLO
}

// warmUp is after how many requests predictions count.
const warmUp = 200

// Run replays, on as many CPUs as there are. done is called after each row; it may be nil.
func (s *Sweep) Run(ctx context.Context, done func(rows, of int)) ([]Row, error) {
	var rows []Row
	of := 0
	for _, m := range s.Mixes {
		of += len(m.Rates) * len(s.Systems)
	}
	for _, m := range s.Mixes {
		for _, rate := range m.Rates {
			window, loads, err := s.loads(m, rate)
			if err != nil {
				return nil, err
			}
			for _, sys := range s.Systems {
				row, err := s.row(ctx, m, rate, window, sys, loads)
				if err != nil {
					return nil, err
				}
				if rows = append(rows, row); done != nil {
					done(len(rows), of)
				}
			}
		}
	}
	return rows, nil
}

// Spare is how many times as many requests the trace has in a window as are chosen, so that seeds choose other sessions of it.
const Spare = 2.5

// loads are the requests of each seed, and the time in which they come. The trace is made as much faster as Spare needs.
func (s *Sweep) loads(m Mix, rate float64) (time.Duration, [][]load.Request, error) {
	last := s.Trace[len(s.Trace)-1].At
	native := float64(len(s.Trace)) / max(last.Seconds(), 1e-3)
	trace := load.Quicker(s.Trace, max(1, Spare*rate/native))
	window := min(s.Window, trace[len(trace)-1].At)
	var loads [][]load.Request
	for seed := range s.Seeds {
		taken := m.Of(load.AtRate(trace, window, rate, uint64(1+seed)))
		if len(taken) == 0 {
			return 0, nil, fmt.Errorf("bench: simulate: %g requests a second in %v of the trace, which has %d requests, are none; want a longer window or trace", rate, window, len(s.Trace))
		}
		loads = append(loads, taken)
	}
	return window, loads, nil
}

// onAllCPUs does n things, as many at once as there are CPUs, and returns the first error by number. Once ctx is over none begins.
func onAllCPUs(ctx context.Context, n int, do func(i int) error) error {
	errs := make([]error, n)
	var group sync.WaitGroup
	places := make(chan struct{}, runtime.GOMAXPROCS(0))
	for i := range n {
		if ctx.Err() != nil {
			break
		}
		places <- struct{}{}
		group.Go(func() {
			defer func() { <-places }()
			errs[i] = do(i)
		})
	}
	group.Wait()
	return cmp.Or(ctx.Err(), cmp.Or(errs...))
}

func (s *Sweep) row(ctx context.Context, m Mix, rate float64, window time.Duration, sys System, loads [][]load.Request) (Row, error) {
	row := Row{Mix: m.Name, Rate: rate, Window: window.Seconds(), Layout: sys.Layout.String(), Policy: sys.Name, Seeds: len(loads)}
	all := make([]Result, len(loads))
	err := onAllCPUs(ctx, len(loads), func(seed int) (err error) {
		all[seed], err = Replay(Setup{Layout: sys.Layout, Costs: s.Costs, Budget: sim.ChunkBudget, Policy: sys.Policy, Queue: sys.Queue, Seed: uint64(1 + seed), SLO: s.SLO}, loads[seed])
		if err != nil {
			return err
		}
		return all[seed].Verdict(sys.Queue)
	})
	if err != nil {
		return row, err
	}
	n, errors, refusals := float64(len(loads)), 0.0, 0.0
	for _, got := range all { // in the order of seeds, so that the same replays have the same sums
		sum := got.Summary
		row.Requests += sum.Asked
		row.Goodput += float64(sum.Good) / row.Window / n
		row.Attainment += float64(sum.Good) / float64(max(1, sum.Asked)) / n
		row.TTFTP50 += sum.Ttft.P50.Seconds() / n
		row.TTFTP99 += sum.Ttft.P99.Seconds() / n
		row.ITLP99 += sum.Itl.P99.Seconds() / n
		row.Refused += float64(got.Refused) / float64(max(1, sum.Asked)) / n
		row.Split += float64(got.Split) / float64(max(1, sum.Asked)) / n
		for _, r := range got.Refusals {
			if refusals++; r.Right() {
				row.RetryRight++
			}
		}
		for _, e := range got.Errors[min(warmUp, len(got.Errors)):] {
			row.Error += e
			errors++
		}
	}
	row.Error /= max(1, errors)
	row.RetryRight /= max(1, refusals)
	return row, nil
}

// String is the layout as ParseLayout reads it.
func (l Layout) String() string {
	out := ""
	for _, r := range []struct {
		n    int
		role string
	}{{l.Prefill, "P"}, {l.Decode, "D"}, {l.Either, "E"}} {
		if r.n > 0 {
			out += strconv.Itoa(r.n) + r.role
		}
	}
	return out
}

var layoutPattern = regexp.MustCompile(`^(?:(\d+)P)?(?:(\d+)D)?(?:(\d+)E)?$`)

// ParseLayout reads a layout: 2P2D are two engines for prefill and two for decode, 4D four that serve requests alone, 4E four of either role.
func ParseLayout(text string) (Layout, error) {
	m := layoutPattern.FindStringSubmatch(text)
	if m == nil {
		return Layout{}, fmt.Errorf("layout %q; want engines by role, such as 2P2D, 4D or 1P1D2E", text)
	}
	var n [3]int
	for i := range n {
		n[i], _ = strconv.Atoi(cmp.Or(m[i+1], "0")) // digits
	}
	l := Layout{n[0], n[1], n[2]}
	if l.Decode+l.Either < 1 || l.Prefill+l.Decode+l.Either > 1024 {
		return Layout{}, fmt.Errorf("layout %q; want at least one engine that gives answers, and at most 1024", text)
	}
	return l, nil
}

// thresholds are those that stand beside cost: prompts of fewer tokens are not split.
var thresholds = []int{1024, 4096, 16384}

// Baselines are what cost is held against on n engines: these serving requests alone by prefix, each static split by prefix, and engines of
// either role that always split, or split prompts above a threshold.
func Baselines(n int) ([]System, error) {
	var systems []System
	var failed error
	add := func(name string, of Layout, least int) {
		prefix := policies.Role{Policy: "prefix"}
		p, err := policies.New(policies.Config{Default: policies.Choosing{Split: policies.SplitRule{MinPromptTokens: &least}, Prefill: prefix, Decode: prefix}})
		systems, failed = append(systems, System{Layout: of, Name: name, Policy: p}), cmp.Or(failed, err)
	}
	add("aggregated", Layout{Decode: n}, 0)
	for prefill := 1; prefill < n; prefill++ {
		add("split", Layout{Prefill: prefill, Decode: n - prefill}, 0)
	}
	if n > 1 {
		add("always", Layout{Either: n}, 0)
		for _, t := range thresholds {
			add(fmt.Sprintf("above %d", t), Layout{Either: n}, t)
		}
	}
	return systems, failed
}

// Cost is the policy cost on n engines of either role.
func Cost(n int, slo load.SLO) (System, error) {
	p, err := policies.New(policies.Config{Default: policies.Choosing{Policy: "cost", Objective: policies.ObjectiveRule{TTFT: &slo.Ttft, ITL: &slo.Tpot}}})
	return System{Layout: Layout{Either: n}, Name: "cost", Policy: p}, err
}

// best is the row with the highest attainment of those of a mix and rate that pass.
func best(rows []Row, mix string, rate float64, pass func(Row) bool) (Row, bool) {
	var best Row
	any := false
	for _, r := range rows {
		if r.Mix == mix && r.Rate == rate && pass(r) && (!any || r.Attainment > best.Attainment) {
			best, any = r, true
		}
	}
	return best, any
}

// Verdicts are what the policy cost has come to beside the best of the others, a line for each mix and rate; none where nothing stands beside it.
func Verdicts(rows []Row) []string {
	var lines []string
	for _, r := range rows {
		if r.Policy == queued {
			peak := 0.0 // with a queue or without
			for _, o := range rows {
				if o.Mix == r.Mix && o.Rate <= r.Rate && (o.Policy == queued || o.Policy == "cost") {
					peak = max(peak, o.Goodput)
				}
			}
			line := fmt.Sprintf("%s at %g/s: with a queue %.2f requests a second keep their objective (%.0f%% of the most up to this rate)", r.Mix, r.Rate, r.Goodput, 100*r.Goodput/max(peak, 1e-9))
			if plain, any := best(rows, r.Mix, r.Rate, func(o Row) bool { return o.Policy == "cost" }); any {
				line += fmt.Sprintf(", %.2f without", plain.Goodput)
			}
			line = fmt.Sprintf("%s; %.1f%% are refused", line, 100*r.Refused)
			if r.Refused > 0 {
				line += fmt.Sprintf(", %.0f%% of them with a Retry-After within a quarter of the right one", 100*r.RetryRight)
			}
			lines = append(lines, line)
		}
		if r.Policy != "cost" {
			continue
		}
		other, any := best(rows, r.Mix, r.Rate, func(o Row) bool { return o.Policy != "cost" && o.Policy != queued && o.Policy != "configured" })
		if !any {
			continue
		}
		line := fmt.Sprintf("%s at %g/s: cost %.2f times %s %s", r.Mix, r.Rate, r.Attainment/other.Attainment, other.Layout, other.Policy)
		if other.Attainment == 0 {
			line = fmt.Sprintf("%s at %g/s: cost %.1f%%, none of the others any", r.Mix, r.Rate, 100*r.Attainment)
		}
		if split, any := best(rows, r.Mix, r.Rate, func(o Row) bool { return o.Policy == "split" }); any {
			line += fmt.Sprintf("; p99 between tokens %.0f ms, best split %.0f ms", 1e3*r.ITLP99, 1e3*split.ITLP99)
		}
		if r.Error > 0 {
			line += fmt.Sprintf("; first tokens predicted within %.0f %%", 100*r.Error)
		}
		lines = append(lines, line)
	}
	return lines
}

// Table is the rows for people: a line for each mix and rate and a column for each system.
func Table(rows []Row) [][]string {
	head := []string{"mix", "rate"}
	var columns []string
	for _, r := range rows {
		if c := r.Layout + " " + r.Policy; !slices.Contains(columns, c) {
			columns = append(columns, c)
		}
	}
	out := [][]string{append(head, columns...)}
	at := func(r Row) []string { return []string{r.Mix, fmt.Sprintf("%g/s", r.Rate)} }
	for _, r := range rows {
		if last := out[len(out)-1]; !slices.Equal(last[:2], at(r)) {
			out = append(out, append(at(r), make([]string, len(columns))...))
		}
		out[len(out)-1][2+slices.Index(columns, r.Layout+" "+r.Policy)] = fmt.Sprintf("%.1f%% %.0f", 100*r.Attainment, 1e3*r.ITLP99)
	}
	return out
}
