package bench

import (
	"context"
	"fmt"
	"strings"
)

// firsts has a first request of each pair, and later ones.
func (s *planeVLLM) firsts(ctx context.Context) error {
	tokens := vllmLengths[0]
	for i, p := range s.pairs {
		if err := s.awake(ctx, i); err != nil {
			return err
		}
		if p.of != us {
			p.asked++
			if err := p.learn(ctx, s.nextPrompt(tokens)[:16]); err != nil {
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
			if err := p.check(ctx, tokens, []string{prompt}, []heard{got}); err != nil {
				return err
			}
			took = append(took, millis(got.first.Sub(begun)))
		}
		of := &s.first[i]
		of.first, of.later = append(of.first, took[0]), append(of.later, spread(took[1:]).Median)
	}
	return nil
}

// firstRow adds the row of first requests.
func (s *planeVLLM) firstRow() {
	row := Row{
		Name: rowFirst, What: "TTFT", Where: vllmWhere, Unit: "ms", Done: len(s.first) * len(s.first[0].first) * (1 + vllmLater),
		Ours: Figure{Of: us, Rounds: s.first[0].first},
		Beside: []Figure{
			{Of: nixlByHand, Rounds: s.first[1].first},
			{Of: us + ", later", Rounds: s.first[0].later},
			{Of: nixlByHand + ", later", Rounds: s.first[1].later},
		},
	}
	row.sum()
	s.report.Rows = append(s.report.Rows, row)
	s.report.Notes = append(s.report.Notes, fmt.Sprintf("%s: of %d starts of each pair, each a figure: %s.", rowFirst, len(s.first[0].first), strings.Join([]string{
		fmt.Sprintf("pdrouter %+.1f ms over later requests", spread(less(row.Ours, row.Beside[1])).Median),
		fmt.Sprintf("%s %+.1f ms", nixlByHand, spread(less(row.Beside[0], row.Beside[2])).Median),
	}, ", ")))
}
