package planevllm

import (
	"context"
	"fmt"
	"strings"

	"pdrouter/bench/report"
	"pdrouter/bench/suites/stock"
)

// firsts has a first request of each pair, and later ones.
func (s *planeVLLM) firsts(ctx context.Context) error {
	tokens := vllmLengths[0]
	for i, p := range s.pairs {
		if err := s.awake(ctx, i); err != nil {
			return err
		}
		if p.of != report.Us {
			p.Asked++
			if err := p.Learn(ctx, s.nextPrompt(tokens)[:16]); err != nil {
				return err
			}
		}
		var took []float64
		for range 1 + vllmLater {
			prompt := s.nextPrompt(tokens)
			got, begun, err := p.ask(ctx, prompt)
			if err != nil {
				return err
			}
			if err := p.check(ctx, tokens, []string{prompt}, []stock.Heard{got}); err != nil {
				return err
			}
			took = append(took, report.Millis(got.First.Sub(begun)))
		}
		of := &s.first[i]
		of.first, of.later = append(of.first, took[0]), append(of.later, report.SpreadOf(took[1:]).Median)
	}
	return nil
}

// firstRow adds the row of first requests.
func (s *planeVLLM) firstRow() {
	row := report.Row{
		Name: rowFirst, What: "TTFT", Where: vllmWhere, Unit: "ms", Done: len(s.first) * len(s.first[0].first) * (1 + vllmLater),
		Ours: report.Figure{Of: report.Us, Rounds: s.first[0].first},
		Beside: []report.Figure{
			{Of: nixlByHand, Rounds: s.first[1].first},
			{Of: report.Us + ", later", Rounds: s.first[0].later},
			{Of: nixlByHand + ", later", Rounds: s.first[1].later},
		},
	}
	row.Sum()
	s.Report.Rows = append(s.Report.Rows, row)
	s.Report.Notes = append(s.Report.Notes, fmt.Sprintf("%s: of %d starts of each pair, each a figure: %s.", rowFirst, len(s.first[0].first), strings.Join([]string{
		fmt.Sprintf("pdrouter %+.1f ms over later requests", report.SpreadOf(less(row.Ours, row.Beside[1])).Median),
		fmt.Sprintf("%s %+.1f ms", nixlByHand, report.SpreadOf(less(row.Beside[0], row.Beside[2])).Median),
	}, ", ")))
}
