package policies

// handOff keeps decode engines to which a hand-off from the chosen prefill engine goes well: engines that do not compute prompts which they
// should receive, over pairs that are not slow. Where decode serves alone, all engines stay.
type handOff struct{}

func (handOff) Filter(c *Candidates, keep []bool) {
	for i := range keep {
		keep[i] = c.troubled == nil || !c.troubled(c.at[i])
	}
}
