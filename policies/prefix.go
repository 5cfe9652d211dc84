package policies

// cached rates engines by the share of the prompt that their prefix cache is thought to hold.
type cached struct{}

func (cached) Score(c *Candidates, scores []float64) {
	for i := range scores {
		scores[i] = min(1, float64(c.Engine(i).Cached)/float64(max(c.Request.PromptTokens, 1)))
	}
}

// leastWork rates engines by what they have to do, where what the prefix cache holds of the prompt counts against what others have them do.
// The unit of its cost is a token that is computed. The numbers were chosen by replays of two traces of conversations (`pdrouter bench
// replay/mooncake`): with 16 the engines find 0.95 of what can be found, and as many requests are good as with any other number from 2 on;
// what a request in flight counts makes hardly a difference there, but does where answers are long.
type leastWork struct{}

const (
	// prefixWeight is what a token found is worth. It is more than the one that is not computed: the next request with the same beginning
	// finds it there too, while an engine that computes it anew holds it a second time, in the place of something else.
	prefixWeight = 16
	// loadWeight is what a request in flight counts beside its prompt: its answer, for as long as that takes.
	loadWeight = 512
	// mostAhead is how many requests in flight an engine may have more than the one with the fewest, whatever it holds: so a beginning
	// that all prompts have is never for one engine alone.
	mostAhead = 64
)

func (leastWork) Score(c *Candidates, scores []float64) {
	for i := range scores {
		e := c.Engine(i)
		scores[i] = float64(e.Backlog + loadWeight*e.InFlight - prefixWeight*e.Cached)
	}
	lowestIsBest(scores)
}
