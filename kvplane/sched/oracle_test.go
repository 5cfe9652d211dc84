package sched

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"

	"pdrouter/kvplane"
	"pdrouter/metadata"
)

// oracle says what is to come of one transfer by sets of everything that was ever said of it.
type oracle struct {
	producer bool
	stopped  bool // by the scheduler, silently
	late     bool // the deadline was over
	told     map[string]bool
	said     map[kvplane.ReportKind]map[metadata.Rank]bool
	first    map[metadata.Rank]kvplane.ReportKind // what a rank said first, of what it may
	blocks   map[int32]bool                       // failed
	bytes    map[metadata.Rank]uint64
	deadline time.Duration
}

// outcomes returns what is new since the last call, for a transfer of n ranks.
func (o *oracle) outcomes(n int) []string {
	ready, negative, safe, sent := o.ranks(kvplane.Ready), o.ranks(kvplane.Failed), len(o.said[kvplane.Reusable]), o.ranks(kvplane.Sent)
	var out []string
	tell := func(what string, is bool) {
		if is && !o.told[what] {
			o.told[what] = true
			out = append(out, what)
		}
	}
	failed := negative > 0 || o.late
	tell("failed", failed && !o.stopped)
	tell("released", !o.producer && !failed && !o.stopped && ready == n)
	tell("closed", (failed || o.stopped) && !o.producer && ready+safe == n)
	tell("freed", o.producer && sent == n)
	return out
}

// ranks counts those that said this first.
func (o *oracle) ranks(k kvplane.ReportKind) int {
	n := 0
	for _, first := range o.first {
		if first == k {
			n++
		}
	}
	return n
}

func (o *oracle) over() bool { return o.told["released"] || o.told["closed"] || o.told["freed"] }

func (o *oracle) note(r kvplane.Report) {
	if (r.Kind == kvplane.Sent) != o.producer || r.Order == kvplane.QueueOrder {
		return
	}
	first, spoke := o.first[r.Rank]
	switch {
	case r.Kind == kvplane.Reusable:
		if first != kvplane.Failed {
			return
		}
	case spoke:
		return
	default:
		o.first[r.Rank] = r.Kind
	}
	o.said[r.Kind][r.Rank] = true
	if r.Kind == kvplane.Failed {
		for _, b := range r.Groups[0].Blocks {
			o.blocks[b] = true
		}
	}
	o.bytes[r.Rank] += r.Bytes
}

// TestAggregatorEqualsOracle gives reports of many interleaved transfers, doubled, of unknown ranks, of other engines and
// in any order among the ranks, to the aggregator and to an oracle of sets.
func TestAggregatorEqualsOracle(t *testing.T) {
	reached := map[string]int{}
	for seed := range uint64(1000) {
		r := rand.New(rand.NewPCG(seed, 4))
		ranks := grid(1+r.IntN(3), 1+r.IntN(4))
		n := len(ranks)
		a := NewAggregator(testEngine, ranks, kvplane.Times{})
		oracles := map[kvplane.TransferID]*oracle{}
		var script [][]kvplane.Report // of each rank, in its order
		var orders []Orders
		script = make([][]kvplane.Report, n)
		for i := range 1 + r.IntN(8) {
			id := kvplane.TransferID{byte(i + 1)}
			o := &oracle{producer: r.IntN(3) == 0, told: map[string]bool{}, first: map[metadata.Rank]kvplane.ReportKind{}, blocks: map[int32]bool{}, bytes: map[metadata.Rank]uint64{},
				said: map[kvplane.ReportKind]map[metadata.Rank]bool{kvplane.Ready: {}, kvplane.Failed: {}, kvplane.Reusable: {}, kvplane.Sent: {}}}
			oracles[id] = o
			if o.producer {
				orders = append(orders, Orders{Offer: []kvplane.Offer{{ID: id}}})
			} else {
				orders = append(orders, Orders{Expect: []kvplane.Expectation{{ID: id, Groups: []kvplane.BlockList{{Blocks: []int32{500}}}}}})
			}
			well := r.IntN(2) == 0
			for k, rank := range ranks {
				var says []kvplane.Report
				groups := []kvplane.BlockList{{Blocks: []int32{int32(r.IntN(5)), int32(r.IntN(5))}}}
				switch {
				case o.producer:
					says = []kvplane.Report{{Kind: kvplane.Sent, Bytes: r.Uint64N(100)}}
				case well || r.IntN(2) == 0:
					says = []kvplane.Report{{Kind: kvplane.Ready}}
				default:
					says = []kvplane.Report{{Kind: kvplane.Failed, Reason: kvplane.Short, Groups: groups}, {Kind: kvplane.Reusable, Reason: kvplane.Short}}
				}
				if r.IntN(10) == 0 { // says something once more, or what does not fit
					says = append(says, []kvplane.Report{says[0], {Kind: kvplane.Reusable}, {Kind: kvplane.Sent}, {Kind: kvplane.Ready}, {Kind: kvplane.Failed, Groups: groups}}[r.IntN(5)])
				}
				if r.IntN(12) == 0 { // never says the end
					says = says[:len(says)-1]
				}
				if r.IntN(8) == 0 { // what it said while the transfer was queued comes late
					says = slices.Insert(says, 0, kvplane.Report{Kind: kvplane.Failed, Order: kvplane.QueueOrder, Groups: groups}, kvplane.Report{Kind: kvplane.Reusable, Order: kvplane.QueueOrder})
				}
				for _, x := range says {
					if x.ID, x.Rank = id, rank; x.Order == 0 {
						x.Order = answers(x.Kind)
					}
					at := r.IntN(len(script[k]) + 1)
					for at < len(script[k]) && slices.ContainsFunc(script[k][at:], func(y kvplane.Report) bool { return y.ID == id }) {
						at++ // a rank's words on one transfer keep their order
					}
					script[k] = slices.Insert(script[k], at, x)
				}
			}
		}
		seqs := make([]uint64, n)
		var last []RankReport
		var out Outcome
		now := time.Duration(1)
		for step := 0; step < 60; step++ {
			now += time.Duration(r.IntN(int(2 * time.Second)))
			for len(orders) > 0 && (step > 5 || r.IntN(2) == 0) {
				a.Order(now, &orders[0])
				for _, x := range orders[0].Expect {
					oracles[x.ID].deadline = now + 41*time.Second
				}
				for _, x := range orders[0].Offer {
					oracles[x.ID].deadline = now + 600*time.Second
				}
				orders = orders[1:]
			}
			if r.IntN(20) == 0 {
				id := kvplane.TransferID{byte(1 + r.IntN(8))}
				a.Order(now, &Orders{Abandon: []Abandonment{{ID: id}}})
				if o := oracles[id]; o != nil && o.deadline > 0 && !o.over() && !o.told["failed"] {
					o.stopped = true
				}
			}
			var reports []RankReport
			for k, rank := range ranks {
				if r.IntN(3) == 0 || step <= 5 {
					continue // not heard in this step
				}
				m := min(len(script[k]), r.IntN(4))
				says := RankReport{Engine: testEngine, Rank: rank, Seq: seqs[k], Reports: script[k][:m]}
				script[k] = script[k][m:]
				if m > 0 {
					seqs[k]++
					says.Seq++
				}
				reports = append(reports, says)
			}
			genuine := len(reports)
			if len(last) > 0 && r.IntN(3) == 0 { // once more, from this step or an earlier one
				reports = append(reports, last[r.IntN(len(last))])
			}
			if r.IntN(3) == 0 && genuine > 0 {
				x := reports[r.IntN(genuine)]
				x.Engine.Generation++
				reports = append(reports, x)
			}
			if r.IntN(3) == 0 {
				x := RankReport{Engine: testEngine, Rank: metadata.Rank{DP: 1}, Seq: 1}
				for id := range oracles {
					x.Reports = append(x.Reports, kvplane.Report{ID: id, Rank: x.Rank, Kind: kvplane.Ready}, kvplane.Report{ID: id, Rank: ranks[0], Kind: kvplane.Failed})
				}
				reports = append(reports, x)
			}
			for _, x := range reports[:genuine] {
				for _, y := range x.Reports {
					if o := oracles[y.ID]; o.deadline > 0 && !o.over() {
						o.note(y)
					}
				}
				if len(x.Reports) > 0 {
					last = append(last, x)
				}
			}
			r.Shuffle(len(reports), func(i, j int) { reports[i], reports[j] = reports[j], reports[i] })
			a.Step(now, reports, &out)
			var want []string
			for id, o := range oracles {
				if o.deadline == 0 {
					continue
				}
				all := o.outcomes(n)
				if now >= o.deadline && !o.over() && !o.told["failed"] && !o.stopped {
					o.late = true
					if !o.producer {
						o.blocks[500] = true
					}
					all = append(all, o.outcomes(n)...)
				}
				for _, what := range all {
					reached[what]++
					if o.late && what == "failed" {
						reached["late"]++
					}
					want = append(want, fmt.Sprint(id[0], " ", what, " ", o.extra(what)))
				}
			}
			var got []string
			for what, all := range map[string][]Ended{"released": out.Released, "failed": out.Failed, "closed": out.Closed, "freed": out.Freed} {
				for _, e := range all {
					var extra any = ""
					switch what {
					case "closed":
						extra = append([]int32{}, slices.Concat(e.Blocks...)...)
					case "freed":
						extra = e.Bytes
					}
					got = append(got, fmt.Sprint(e.ID[0], " ", what, " ", extra))
				}
			}
			slices.Sort(got)
			slices.Sort(want)
			if diff := gocmp.Diff(got, want); diff != "" {
				t.Fatalf("seed %d, step %d: outcomes differ (-got +want):\n%s", seed, step, diff)
			}
		}
		open := 0
		for _, o := range oracles {
			if o.deadline > 0 && !o.over() {
				open++
			}
		}
		if a.Open() != open {
			t.Fatalf("seed %d: %d transfers are open; want %d", seed, a.Open(), open)
		}
	}
	for _, what := range []string{"released", "failed", "closed", "freed", "late"} {
		if reached[what] < 100 {
			t.Errorf("%q was reached %d times", what, reached[what])
		}
	}
}

// extra is what the outcome must name besides: all blocks that failed, all bytes that were sent.
func (o *oracle) extra(what string) any {
	switch what {
	case "closed":
		out := []int32{}
		for b := range o.blocks {
			out = append(out, b)
		}
		slices.SortFunc(out, cmp.Compare)
		return out
	case "freed":
		sum := uint64(0)
		for _, b := range o.bytes {
			sum += b
		}
		return sum
	}
	return ""
}
