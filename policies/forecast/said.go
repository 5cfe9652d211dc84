package forecast

// untold are tokens of a leg that its engine has not been told of.
type untold struct {
	tokens  int
	even    int     // that were not late; tokens that came together are late together
	seconds float64 // before these
	long    int     // gaps before late ones
	longs   float64 // seconds of these
}

// toldEvery is how many tokens an engine is told of at once, so that a token costs no lock.
const toldEvery = 16

// Said notes that so many tokens of a leg's answer have come together, after the first token.
func (e *Engine) Said(l *Leg, now float64, tokens int) {
	if !l.started || tokens <= 0 {
		return
	}
	gap, u := now-l.last, &l.said
	l.last = now
	if gap > l.Late*float64(tokens) {
		u.long++
		u.longs += gap
	} else {
		u.even += tokens
		u.seconds += gap
	}
	if u.tokens += tokens; u.tokens >= toldEvery {
		e.mu.Lock()
		defer e.mu.Unlock()
		e.tell(l, now)
	}
}

// tell takes in what a leg has said.
func (e *Engine) tell(l *Leg, now float64) {
	u := l.said
	l.said = untold{}
	if l.state != streaming {
		return
	}
	l.tokens += u.tokens
	e.context += u.tokens
	if u.long > 0 {
		e.gaps.add(float64(u.long), u.longs)
	}
	e.model.said(now, u.tokens, u.long)
	o := e.beside()
	if u.even == 0 && u.long > 1 && len(e.prompts) == 0 && e.began <= l.last-u.longs && o.Wait == 0 { // no prompt was computed meanwhile: steps take as long
		u.even, u.seconds = u.tokens, u.longs*(1-min(o.Prompts, mostPrompts))
	}
	if e.observed += u.tokens; u.even > 0 && u.seconds > 0 && e.observed >= observeEvery {
		e.observed = 0
		e.step.seen = now
		x := stepTerms(e.streams+o.Streams, e.context+o.Context)
		e.model.learnStep(x, u.seconds/float64(u.even), &e.step.ratio)
	}
}

// observeEvery is after how many tokens of all streams the next observation of a step is taken in.
const observeEvery = 16
