package replay

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"pdrouter/bench/report"
)

// found says in a line for each mix whether the best split or the aggregated engines serve more requests well, and at which rates.
// One is ahead of the other if chance would hardly have put it before the other in so many rounds: else they are level.
func found(points []*sweepPoint) []string {
	var lines []string
	for _, m := range replayMixes {
		ahead := map[string][]string{}
		var order, said []string
		var asked, prompts, answers int
		for _, p := range points {
			if p.mix.Name != m.Name || p.policies() {
				continue
			}
			asked, prompts, answers = asked+p.asked, prompts+p.prompts, answers+p.answers
			who, split, aggregated := p.verdict()
			said = append(said, fmt.Sprintf("%.0f %% (%s) and %.0f %% at %g/s", split.Median, split.Of, aggregated.Median, p.rate))
			if who == "" {
				continue
			}
			if ahead[who] == nil {
				order = append(order, who)
			}
			ahead[who] = append(ahead[who], fmt.Sprintf("%g", p.rate))
		}
		if len(said) == 0 {
			continue
		}
		won := "none is ahead"
		for i, who := range order {
			if order[i] = fmt.Sprintf("%s at %s/s", who, strings.Join(ahead[who], ", ")); i == 0 {
				order[i] = fmt.Sprintf("%s is ahead at %s/s", who, strings.Join(ahead[who], ", "))
			}
			won = strings.Join(order, ", ")
		}
		lines = append(lines, fmt.Sprintf("**%s** (prompts of %d tokens, answers of %d in the mean): %s. %s.", m.Name, prompts/asked, answers/asked, won, strings.Join(said, ", ")))
	}
	if len(lines) > 0 {
		lines = append([]string{"Which is better, split or aggregated, by the part of the requests that are good: that of the best split, and of aggregated engines. One is ahead if it is with so many choices of conversations that chance alone would do it once in twenty times at the most; else they are level."}, lines...)
	}
	return lines
}

// verdict says which is ahead, "" if none is, and how many requests are good with the best split and with aggregated engines.
func (p *sweepPoint) verdict() (who string, split, aggregated report.Figure) {
	whole := len(replayFleets) - 1
	for f := range whole {
		if g := p.figure(replayFleets[f].name, f, 0); f == 0 || g.Median > split.Median {
			split = g
		}
	}
	aggregated = p.figure(replayFleets[whole].name, whole, 0)
	switch more, less := compared(split.Rounds, aggregated.Rounds); {
	case !surely(more, less):
	case more > less:
		who = split.Of
	default:
		who = aggregated.Of
	}
	return who, split, aggregated
}

// compared is in how many rounds a is more than b, and in how many it is less.
func compared(a, b []float64) (more, less int) {
	for i := range a {
		switch {
		case a[i] > b[i]:
			more++
		case a[i] < b[i]:
			less++
		}
	}
	return more, less
}

// surely reports whether so many rounds for one and so many for the other are too uneven for chance: the sign test, of both sides, at 5 %.
func surely(more, less int) bool {
	n := more + less
	of, chance := math.Pow(.5, float64(n)), 0. // one outcome; that of the fewer or less
	for i := range min(more, less) + 1 {
		chance += of
		of *= float64(n-i) / float64(i+1)
	}
	return 2*chance <= .05
}

// policiesFound says in a line for each fleet how the policies serve beside round robin, by the part of the requests that are good.
func policiesFound(points []*sweepPoint) []string {
	var lines []string
	for _, p := range points {
		if !p.policies() {
			continue
		}
		lines = append(lines, fmt.Sprintf("Policies beside round robin at %g/s, %s, by the part of the requests that are good, with %d choices of conversations:", p.rate, p.mix.Name, len(p.rounds[0])))
		for i := 0; i < len(p.runs); i += len(replayPolicies) {
			robin := p.figure("", i+slices.Index(replayPolicies, "round_robin"), 0)
			var said []string
			for j, policy := range replayPolicies {
				if policy == "round_robin" {
					continue
				}
				f := p.figure(policy, i+j, 0)
				more, less := compared(f.Rounds, robin.Rounds)
				verdict := "level"
				if surely(more, less) {
					verdict = map[bool]string{true: "ahead", false: "behind"}[more > less]
				}
				said = append(said, fmt.Sprintf("%s %.0f %% (%s: more in %d, less in %d)", policy, f.Median, verdict, more, less))
			}
			lines = append(lines, fmt.Sprintf("**%s**: %s, round_robin %.0f %%.", p.runs[i].fleet.name, strings.Join(said, ", "), robin.Median))
		}
	}
	return lines
}
