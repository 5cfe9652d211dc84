package simulate

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"pdrouter/bench/load"
)

// ConversationSweep is conversations that are replayed at each rate, with each seed, with moves and without.
type ConversationSweep struct {
	Conversations // but its rate and seed
	Rates         []float64
	Seeds         int
}

// ConversationRow is what conversations have come to at a rate, of all seeds. Times are in seconds, of second and later turns.
type ConversationRow struct {
	Rate    float64         `json:"rate"`  // turns a second
	Turns   string          `json:"turns"` // all; or by what has become of the engines that served the turn before: stay, drained, lost
	Without ConversationRun `json:"without_moves"`
	With    ConversationRun `json:"with_moves"`
	Ratio   float64         `json:"ttft_p50_ratio"`  // of with over without; 0 if there were no such turns
	Moves   map[string]int  `json:"moves,omitempty"` // by reason and result; of all turns
}

// ConversationRun is ConversationRow of one of the two.
type ConversationRun struct {
	Turns   int     `json:"turns"`
	TTFTP50 float64 `json:"ttft_p50"`
	TTFTP99 float64 `json:"ttft_p99"`
	Late    float64 `json:"late"` // the part of the turns whose first token came after the objective
}

// Run replays, on as many CPUs as there are. done is called after each rate; it may be nil.
func (s *ConversationSweep) Run(ctx context.Context, done func(rates, of int)) ([]ConversationRow, error) {
	var rows []ConversationRow
	for i, rate := range s.Rates {
		all := make([][2]Conversed, s.Seeds) // without and with
		err := onAllCPUs(ctx, 2*s.Seeds, func(i int) (err error) {
			seed, with := i/2, i%2
			one := s.Conversations
			one.Rate, one.Seed, one.Uses = rate, uint64(1+seed), [2][]string{nil, s.Uses}[with]
			all[seed][with], err = one.Run()
			return err
		})
		if err != nil {
			return nil, err
		}
		if rows = append(rows, s.rowsOf(rate, all)...); done != nil {
			done(i+1, len(s.Rates))
		}
	}
	return rows, nil
}

// rowsOf sums up the seeds of a rate.
func (s *ConversationSweep) rowsOf(rate float64, seeds [][2]Conversed) []ConversationRow {
	var times [1 + turnKinds][2][]time.Duration // 0 is of all turns
	moves := map[string]int{}
	for _, runs := range seeds {
		for with, of := range runs {
			for kind, more := range of.TTFT {
				times[0][with] = append(times[0][with], more...)
				times[1+kind][with] = append(times[1+kind][with], more...)
			}
		}
		for what, n := range runs[1].Moves {
			moves[what] += n
		}
	}
	var rows []ConversationRow
	for kind, of := range times {
		row := ConversationRow{Rate: rate, Turns: "all", Without: s.runOf(of[0]), With: s.runOf(of[1])}
		if kind > 0 {
			row.Turns = TurnKind(kind - 1).String()
		} else {
			row.Moves = moves
		}
		if row.Without.Turns > 0 && row.With.Turns > 0 {
			row.Ratio = row.With.TTFTP50 / row.Without.TTFTP50
		}
		rows = append(rows, row)
	}
	return rows
}

func (s *ConversationSweep) runOf(times []time.Duration) ConversationRun {
	q, late := load.QuantilesOf(times), 0.0
	for _, t := range times {
		if t > s.SLO.Ttft {
			late++
		}
	}
	return ConversationRun{len(times), q.P50.Seconds(), q.P99.Seconds(), late / float64(max(1, len(times)))}
}

// ConversationTable is the rows for people: a line for each rate and kind of turns.
func ConversationTable(rows []ConversationRow) [][]string {
	out := [][]string{{"rate", "engines before", "turns", "p50 without", "p50 with", "change", "p99 without", "p99 with", "late without", "late with"}}
	for _, r := range rows {
		change := "-"
		if r.Ratio > 0 {
			change = fmt.Sprintf("%+.1f%%", 100*(r.Ratio-1))
		}
		out = append(out, []string{fmt.Sprintf("%g/s", r.Rate), r.Turns, fmt.Sprintf("%d, %d", r.Without.Turns, r.With.Turns),
			fmt.Sprintf("%.2f s", r.Without.TTFTP50), fmt.Sprintf("%.2f s", r.With.TTFTP50), change, fmt.Sprintf("%.1f s", r.Without.TTFTP99), fmt.Sprintf("%.1f s", r.With.TTFTP99),
			fmt.Sprintf("%.1f%%", 100*r.Without.Late), fmt.Sprintf("%.1f%%", 100*r.With.Late)})
	}
	return out
}

// MoveLines are what became of moves, a line for each rate.
func MoveLines(rows []ConversationRow) (lines []string) {
	for _, r := range rows {
		var parts []string
		for _, what := range slices.Sorted(maps.Keys(r.Moves)) {
			parts = append(parts, fmt.Sprintf("%s %d", what, r.Moves[what]))
		}
		if len(parts) > 0 {
			lines = append(lines, fmt.Sprintf("moves at %g/s: %s", r.Rate, strings.Join(parts, ", ")))
		}
	}
	return lines
}

// ParseChanges reads changes of engines, such as add@40s or drain@45s.
func ParseChanges(texts []string) (out []Change, err error) {
	for _, text := range texts {
		kind, at, _ := strings.Cut(text, "@")
		i := slices.Index(changeKinds[:], kind)
		d, err := time.ParseDuration(at)
		if i < 0 || err != nil || d < 0 {
			return nil, fmt.Errorf("%q; want %s, @, and a time such as 40s", text, strings.Join(changeKinds[:], ", "))
		}
		out = append(out, Change{d, ChangeKind(i)})
	}
	return out, nil
}
