package policies

// zone prefers engines of a zone: as a scorer it rates them 1 and others 0, as a filter it keeps them. Without a name it is the zone of the
// prefill engine that was chosen before; where there is none, or its zone is not known, all engines are of it.
type zone struct{ name string }

func (z zone) holds(c *Candidates, i int) bool {
	want := z.name
	if want == "" {
		if c.Partner == nil || c.Partner.zone() == "" {
			return true
		}
		want = c.Partner.zone()
	}
	return c.Engine(i).zone() == want
}

func (z zone) Score(c *Candidates, scores []float64) {
	for i := range scores {
		if z.holds(c, i) {
			scores[i] = 1
		}
	}
}

func (z zone) Filter(c *Candidates, keep []bool) {
	for i := range keep {
		keep[i] = z.holds(c, i)
	}
}

// promptTokens keeps engines that are meant for prompts as long as the request's.
type promptTokens struct{}

func (promptTokens) Filter(c *Candidates, keep []bool) {
	n := c.Request.PromptTokens
	for i := range keep {
		p := c.Engine(i).Place
		keep[i] = p == nil || c.Request.AnyLength || n >= p.PromptTokens[0] && (p.PromptTokens[1] == 0 || n <= p.PromptTokens[1])
	}
}
