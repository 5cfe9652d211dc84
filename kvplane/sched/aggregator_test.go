package sched

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"pdrouter/kvplane"
	"pdrouter/kvplane/control"
	"pdrouter/metadata"
)

var testEngine = metadata.Incarnation{Engine: "e", Generation: 2}

// grid is every rank of pp stages of tp ranks.
func grid(pp, tp int) []metadata.Rank {
	var out []metadata.Rank
	for p := range pp {
		for t := range tp {
			out = append(out, metadata.Rank{PP: p, TP: t})
		}
	}
	return out
}

// says is a RankReport of a rank of testEngine about transfers.
func says(rank metadata.Rank, seq uint64, reports ...kvplane.Report) RankReport {
	for i := range reports {
		reports[i].Rank = rank
		if reports[i].Order == 0 {
			reports[i].Order = answers(reports[i].Kind)
		}
	}
	return RankReport{Engine: testEngine, Rank: rank, Seq: seq, Reports: reports}
}

// TestAggregatorScript gives one line to a step: "p.t:seq kind id" reports, orders, or the time in ms.
func TestAggregatorScript(t *testing.T) {
	times := kvplane.Times{Lease: 10 * time.Millisecond, Wait: 20 * time.Millisecond, Deadline: 5 * time.Millisecond, NetDelay: 5 * time.Millisecond, Queue: 50 * time.Millisecond}
	for _, tc := range []struct {
		name, script, want string
		ignored            Ignored
	}{
		{name: "all ready, over stages and ranks",
			script: "expect 1|0.0:1 ready 1, 0.1:1 ready 1|1.0:1 ready 1|1.1:1 ready 1",
			want:   "-|-|-|released 1 4/4"},
		{name: "any failed, closed when all are reusable",
			script: "expect 1|0.1:1 failed 1|0.0:1 ready 1, 1.0:1 ready 1|0.1:2 reusable 1, 1.1:1 failed 1|1.1:2 reusable 1",
			want:   "-|failed 1 0/4 short [[1]]|-|-|closed 1 4/4 short [[1 3]]"},
		{name: "failed and reusable at once",
			script: "expect 1|0.0:1 failed 1 reusable 1, 0.1:1 ready 1, 1.0:1 ready 1, 1.1:1 ready 1",
			want:   "-|failed 1 0/4 short [[0]] closed 1 4/4 short [[0]]"},
		{name: "all sent",
			script: "offer 1|0.0:1 sent 1, 1.1:1 sent 1|0.1:1 sent 1, 1.0:1 sent 1",
			want:   "-|-|freed 1 4/4"},
		{name: "the doubled report of one rank is not another's",
			script:  "expect 1|0.0:1 ready 1, 0.0:1 ready 1|0.0:2 ready 1|0.1:1 ready 1, 1.0:1 ready 1",
			want:    "-|-|-|-",
			ignored: Ignored{Doubled: 1, Misfit: 1}},
		{name: "a late copy of an older report",
			script:  "expect 1|expect 2|0.0:2 ready 2|0.0:1 ready 1",
			want:    "-|-|-|-",
			ignored: Ignored{Doubled: 1}},
		{name: "strangers and unknown transfers",
			script:  "expect 1|0.2:1 ready 1, 2.0:1 ready 1|0.0:1 ready 9|0.1:1 sent 1",
			want:    "-|-|-|-",
			ignored: Ignored{Stranger: 2, Unknown: 1, Stale: 1}},
		{name: "transfers do not mix",
			script: "expect 1|offer 2|0.0:1 ready 1 sent 2, 0.1:1 sent 2|0.1:2 ready 1, 1.0:1 ready 1 sent 2|1.1:1 sent 2|1.1:2 ready 1",
			want:   "-|-|-|-|freed 2 4/4|released 1 4/4"},
		{name: "the deadline ends it", // 20 + 5 + 5 ms
			script: "expect 1|0.0:1 ready 1|29|30|31|0.1:1 failed 1 reusable 1, 1.0:1 ready 1|1.1:1 ready 1",
			want:   "-|-|-|failed 1 1/4 deadline [[7 8]]|-|-|closed 1 4/4 deadline [[1 7 8]]"},
		{name: "the deadline ends P's wait, all sent frees", // 20 leases
			script: "offer 1|0.0:1 sent 1|199|200|0.1:1 sent 1, 1.0:1 sent 1|1.1:1 sent 1",
			want:   "-|-|-|failed 1 1/4 deadline []|-|freed 1 4/4 deadline"},
		{name: "what the scheduler gave up is not told again",
			script: "expect 1|abandon 1|0.0:1 failed 1 reusable 1|500|0.1:1 ready 1, 1.0:1 ready 1, 1.1:1 failed 1|1.1:2 reusable 1",
			want:   "-|-|-|-|-|closed 1 4/4 stopped [[0 3]]"},
		{name: "given up on P",
			script: "offer 1|abandon 1|0.0:1 sent 1, 0.1:1 sent 1, 1.0:1 sent 1, 1.1:1 sent 1",
			want:   "-|-|freed 1 4/4 stopped"},
		{name: "queued, then expected",
			script: "queue 1|expect 1|0.0:1 ready 1, 0.1:1 ready 1, 1.0:1 ready 1|1.1:1 ready 1",
			want:   "-|-|-|released 1 4/4"},
		{name: "queued and not kept by P: that is its end",
			script: "queue 1|0.1:1 q-failed 1 q-reusable 1|1.1:1 q-failed 1|abandon 1|1.1:2 q-reusable 1|500|0.0:1 q-failed 1",
			want:   "-|failed 1 0/4 short [[1]]|-|-|-|-|-", ignored: Ignored{Unknown: 1}},
		{name: "an expectation crosses the end of what was queued: what is said of the old order is no answer to the new one",
			script: "queue 1|expect 1|0.0:1 q-failed 1 q-reusable 1|0.0:2 failed 1 reusable 1, 0.1:1 ready 1, 1.0:1 ready 1|1.1:1 failed 1 reusable 1",
			want:   "-|-|-|failed 1 0/4 short [[0]]|closed 1 4/4 short [[0 3]]", ignored: Ignored{Stale: 2}},
		{name: "a rank that has forgotten that the queued transfer lapsed registers the blocks: they are not free",
			script: "queue 1|expect 1|0.0:1 q-failed 1 q-reusable 1, 0.1:1 ready 1, 1.0:1 ready 1, 1.1:1 ready 1|0.0:2 failed 1|0.0:3 reusable 1",
			want:   "-|-|-|failed 1 3/4 short [[0]]|closed 1 4/4 short [[0]]", ignored: Ignored{Stale: 2}},
		{name: "queued and given up",
			script: "queue 1|abandon 1|0.0:1 q-failed 1 q-reusable 1|500",
			want:   "-|-|-|-"},
		{name: "queued for too long, unless it is said again", // 50 + 5 ms
			script: "queue 1|54|queue 1|108|109|200",
			want:   "-|-|-|-|failed 1 0/4 deadline []|-"},
		{name: "queued ones are not ready",
			script: "queue 1|0.0:1 ready 1 sent 1 reusable 1 q-reusable 1",
			want:   "-|-", ignored: Ignored{Stale: 3, Misfit: 1}},
		{name: "an id serves once at a time",
			script: "expect 1|offer 1|0.0:1 ready 1, 0.1:1 ready 1, 1.0:1 ready 1, 1.1:1 ready 1",
			want:   "-|-|released 1 4/4", ignored: Ignored{Orders: 1}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			a := NewAggregator(testEngine, grid(2, 2), times)
			var out Outcome
			var got []string
			now := time.Duration(0)
			for _, line := range strings.Split(tc.script, "|") {
				var reports []RankReport
				for _, part := range strings.Split(line, ", ") {
					var id byte
					var at int
					switch f := strings.Fields(part); {
					case strings.Contains(f[0], ":"):
						reports = append(reports, parseSays(t, f))
					case len(f) == 1:
						fmt.Sscan(f[0], &at)
						now = time.Duration(at) * time.Millisecond
					default:
						fmt.Sscan(f[1], &id)
						o := map[string]Orders{
							"expect":  {Expect: []kvplane.Expectation{{ID: kvplane.TransferID{id}, Groups: []kvplane.BlockList{{Blocks: []int32{8, 7}}}}}},
							"queue":   {Queue: []Queued{{ID: kvplane.TransferID{id}}}},
							"offer":   {Offer: []kvplane.Offer{{ID: kvplane.TransferID{id}}}},
							"abandon": {Abandon: []Abandonment{{ID: kvplane.TransferID{id}}}},
						}[f[0]]
						a.Order(now, &o)
					}
				}
				a.Step(now, reports, &out)
				got = append(got, outcomeText(&out))
			}
			if diff := cmp.Diff(strings.Join(got, "|"), tc.want); diff != "" {
				t.Errorf("outcomes differ (-got +want):\n%s", diff)
			}
			if diff := cmp.Diff(a.Ignored(), tc.ignored); diff != "" {
				t.Errorf("ignored (-got +want):\n%s", diff)
			}
		})
	}
}

// parseSays reads "p.t:seq kind id kind id …"; a failed names the rank's own block 2p+t. A kind that begins with "q-"
// answers what was queued.
func parseSays(t *testing.T, f []string) RankReport {
	t.Helper()
	var rank metadata.Rank
	var seq uint64
	if _, err := fmt.Sscanf(f[0], "%d.%d:%d", &rank.PP, &rank.TP, &seq); err != nil {
		t.Fatal(err)
	}
	var reports []kvplane.Report
	for i := 1; i < len(f); i += 2 {
		var id byte
		fmt.Sscan(f[i+1], &id)
		kind, queued := strings.CutPrefix(f[i], "q-")
		r := kvplane.Report{ID: kvplane.TransferID{id}, Kind: reportKind(kind)}
		if r.Order = answers(r.Kind); queued {
			r.Order = kvplane.QueueOrder
		}
		if r.Kind == kvplane.Failed {
			r.Reason, r.Groups = kvplane.Short, []kvplane.BlockList{{Blocks: []int32{int32(2*rank.PP + rank.TP)}}}
		}
		reports = append(reports, r)
	}
	return says(rank, seq, reports...)
}

// answers is the order that a report of this kind answers, unless it is about what was only queued.
func answers(k kvplane.ReportKind) kvplane.OrderKind {
	if k == kvplane.Sent {
		return kvplane.OfferOrder
	}
	return kvplane.ExpectOrder
}

func reportKind(s string) kvplane.ReportKind {
	for k := kvplane.Ready; k <= kvplane.Sent; k++ {
		if k.String() == s {
			return k
		}
	}
	return 0
}

func outcomeText(o *Outcome) string {
	var b []string
	add := func(what string, all []Ended) {
		for _, e := range all {
			s := fmt.Sprintf("%s %d %d/%d", what, e.ID[0], e.K, e.N)
			if e.Reason != 0 {
				s += " " + e.Reason.String()
			}
			if e.Blocks != nil || what == "failed" {
				s += fmt.Sprint(" ", e.Blocks)
			}
			b = append(b, s)
		}
	}
	add("released", o.Released)
	add("failed", o.Failed)
	add("closed", o.Closed)
	add("freed", o.Freed)
	if b == nil {
		return "-"
	}
	return strings.Join(b, " ")
}

func TestAggregatorGathers(t *testing.T) {
	a := NewAggregator(testEngine, grid(1, 2), kvplane.Times{})
	a.Order(1, &Orders{Expect: []kvplane.Expectation{{ID: kvplane.TransferID{1}}}, Offer: []kvplane.Offer{{ID: kvplane.TransferID{2}}}})
	var out Outcome
	step := func(reports ...RankReport) { a.Step(2, reports, &out) }
	one, two := metadata.Rank{TP: 0}, metadata.Rank{TP: 1}
	r := says(one, 1, kvplane.Report{ID: kvplane.TransferID{1}, Kind: kvplane.Ready, Tokens: 90}, kvplane.Report{ID: kvplane.TransferID{2}, Kind: kvplane.Sent, Bytes: 5})
	r.Handshakes, r.Pending = 2, []kvplane.TransferID{{9}, {8}}
	step(r)
	if diff := cmp.Diff(out.Events, []control.Event{
		{Transfer: kvplane.TransferID{1}.String(), Engine: "e", Generation: 2, Rank: one, Event: control.Ready},
		{Transfer: kvplane.TransferID{2}.String(), Engine: "e", Generation: 2, Rank: one, Event: control.Sent, Bytes: 5},
	}); diff != "" {
		t.Errorf("events (-got +want):\n%s", diff)
	}
	q := RankReport{Engine: testEngine, Rank: two, Handshakes: 1, Pending: []kvplane.TransferID{{8}, {7}}}
	step(q)
	if diff := cmp.Diff(out.Pending, []kvplane.TransferID{{7}, {8}, {9}}); diff != "" || out.Handshakes != 3 {
		t.Errorf("%d handshakes pend (-got +want):\n%s", out.Handshakes, diff)
	}
	step() // nobody is heard: what stood, stands
	if len(out.Pending) != 3 || len(out.Events) != 0 {
		t.Errorf("a step without reports: %+v", out)
	}
	step(RankReport{Engine: testEngine, Rank: one, Seq: 1}, RankReport{Engine: testEngine, Rank: two},
		RankReport{Engine: metadata.Incarnation{Engine: "e", Generation: 1}, Rank: two, Seq: 1, Handshakes: 5})
	if len(out.Pending) != 0 || out.Handshakes != 0 || a.Ignored() != (Ignored{Foreign: 1}) {
		t.Errorf("all handshakes are done: %+v; ignored %+v", out, a.Ignored())
	}
	step(says(two, 1, kvplane.Report{ID: kvplane.TransferID{1}, Kind: kvplane.Ready, Tokens: 80}, kvplane.Report{ID: kvplane.TransferID{2}, Kind: kvplane.Sent, Bytes: 6, Reason: kvplane.LeaseOver, Detail: "x"}))
	if diff := cmp.Diff(out.Released, []Ended{{ID: kvplane.TransferID{1}, Tokens: 80, K: 2, N: 2}}); diff != "" {
		t.Errorf("released (-got +want):\n%s", diff)
	}
	if diff := cmp.Diff(out.Freed, []Ended{{ID: kvplane.TransferID{2}, Rank: two, Reason: kvplane.LeaseOver, Detail: "x", Bytes: 11, K: 2, N: 2}}); diff != "" {
		t.Errorf("freed (-got +want):\n%s", diff)
	}
	step(says(one, 4, kvplane.Report{ID: kvplane.TransferID{1}, Kind: kvplane.Ready}))
	if a.Missed() != 2 || a.Open() != 0 || a.Next() != 0 {
		t.Errorf("%d reports missed, %d transfers open, next deadline %v; want 2, 0, 0", a.Missed(), a.Open(), a.Next())
	}
}

func TestAggregatorAllocatesNothingWithoutNews(t *testing.T) {
	a := NewAggregator(testEngine, grid(2, 4), kvplane.Times{})
	for i := range 100 {
		a.Order(1, &Orders{Expect: []kvplane.Expectation{{ID: kvplane.TransferID{byte(i + 1)}}}})
	}
	var reports []RankReport
	for _, r := range grid(2, 4) {
		reports = append(reports, RankReport{Engine: testEngine, Rank: r, Handshakes: 1, Pending: []kvplane.TransferID{{1}, {2}}})
	}
	var out Outcome
	a.Step(1, reports, &out)
	if n := testing.AllocsPerRun(100, func() { a.Step(2, reports, &out); a.Step(3, nil, &out) }); n != 0 {
		t.Errorf("%v allocations in two steps; want none", n)
	}
}

func TestAggregatorForgetsDeadlinesThatAreOver(t *testing.T) {
	a := NewAggregator(testEngine, grid(1, 1), kvplane.Times{})
	var out Outcome
	for i := range 10_000 {
		id := kvplane.TransferID{byte(i), byte(i >> 8), 1}
		a.Order(time.Duration(i+1), &Orders{Offer: []kvplane.Offer{{ID: id}}})
		a.Step(time.Duration(i+1), []RankReport{says(metadata.Rank{}, uint64(i+1), kvplane.Report{ID: id, Kind: kvplane.Sent})}, &out)
	}
	if n := a.timers.Len(); n > 100 || a.Open() != 0 {
		t.Errorf("%d deadlines are kept for %d transfers", n, a.Open())
	}
}
