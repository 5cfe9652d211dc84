package policies

// load rates engines by their requests in flight: the fewest is best.
type load struct{}

func (load) Score(c *Candidates, scores []float64) {
	for i := range scores {
		scores[i] = float64(c.Engine(i).InFlight)
	}
	lowestIsBest(scores)
}

// backlog rates engines by the prompt tokens that they have yet to compute: the fewest is best.
type backlog struct{}

func (backlog) Score(c *Candidates, scores []float64) {
	for i := range scores {
		scores[i] = float64(c.Engine(i).Backlog)
	}
	lowestIsBest(scores)
}

// ahead leaves out engines with many more requests in flight than the engine with the fewest.
type ahead struct{ requests int }

func (f ahead) Filter(c *Candidates, keep []bool) {
	fewest := c.Engine(0).InFlight
	for i := range keep {
		fewest = min(fewest, c.Engine(i).InFlight)
	}
	for i := range keep {
		keep[i] = c.Engine(i).InFlight < fewest+f.requests
	}
}
