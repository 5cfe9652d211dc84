package forecast

// Others is what other gateways have at an engine, all of them together.
type Others struct {
	Wait    float64 // seconds until it has computed their prompts
	Streams int     // answers that it gives or is to give
	Context int     // tokens that these hold
	Prompts float64 // the part of its recent time in which it computed their prompts
}

// Own is what this gateway has there, as other gateways are told.
func (e *Engine) Own(now float64) Others {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.settle(now)
	return e.own(now)
}

func (e *Engine) own(now float64) Others {
	wait, _, _ := e.waits(now)
	return Others{Wait: wait, Streams: e.streams, Context: e.context, Prompts: e.busy.at(now) / recent}
}

// SetOthers notes what other gateways have there now; it holds until the next call.
func (e *Engine) SetOthers(o Others) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.others = o
}

// Gateways is how many answers the engine gives or is to give to this and other gateways, and how many tokens these hold.
func (e *Engine) Gateways() (streams, context int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.streams + e.others.Streams, e.context + e.others.Context
}

// Rate is how many requests a second this gateway was sent recently.
func (m *Model) Rate(now float64) float64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.arrivals.at(now) / recent
}

// SetOthersRate notes how many requests a second other gateways are sent, all together.
func (m *Model) SetOthersRate(rate float64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.othersRate = rate
}
