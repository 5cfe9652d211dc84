package policies

// AdapterState is what is known of an engine and the LoRA adapter that a request names.
type AdapterState uint8

const (
	AdapterLoadable AdapterState = iota // the engine has a slot for it, or says nothing of its slots
	AdapterLoaded                       // the engine has it in a slot
	AdapterBlocked                      // requests for other adapters have all slots: the request would wait for one
)

// lora rates engines by what they have to do before the request's adapter can be used. Engines that are in the same state are equal, and so are
// all of them for a request without an adapter.
type lora struct{}

func (lora) Score(c *Candidates, scores []float64) {
	for i := range scores {
		switch c.Engine(i).Adapter {
		case AdapterLoaded:
			scores[i] = 1
		case AdapterLoadable:
			scores[i] = 0.5
		}
	}
}
