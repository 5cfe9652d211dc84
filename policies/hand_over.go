package policies

// handOver keeps decode engines to which a hand-over from the chosen prefill engine goes well: engines that do not compute prompts which they
// should receive, over pairs that are not slow. Where decode serves alone, all engines stay.
type handOver struct{}

func (handOver) Filter(c *Candidates, keep []bool) {
	for i := range keep {
		keep[i] = c.troubled == nil || !c.troubled(c.at[i])
	}
}
