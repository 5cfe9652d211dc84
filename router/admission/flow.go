package admission

import "math"

const (
	// outputWeight is what a token of an answer counts, a computed token of a prompt being 1: decoding holds an engine for longer. llm-d's
	// program-aware fairness has the same.
	outputWeight = 2
	// trifle is the attained service, in tokens, below which a tenant or session counts as new, and is forgotten.
	trifle = 256
)

// flow is the requests of one priority, of one of its tenants, or of one session of a tenant: a tree of three levels. It orders those below it
// of which requests wait.
//
// Attained service is a decayed sum of tokens. It is kept as the time at which it will have decayed to trifle, in half-lives. So the order of
// two flows does not change while neither is charged, and comparing them needs no clock.
type flow struct {
	id      flowID
	parent  *flow    // nil of a priority
	until   float64  // when the attained service has decayed to trifle; never: there is none
	shift   float64  // log2 of the weight
	index   int      // in waitlist.all, if it is remembered
	pins    int      // what needs it: requests that wait or are with engines, and remembered flows below it
	waiting int      // requests
	turn    uint64   // when it began to wait: a later one has a higher number
	at      [2]int   // its places in the heaps of its parent
	below   [2]flows // those below it of which requests wait
	line    line     // of a session: its requests that wait
}

// flowID names a flow. Session 0 is the tenant's own.
type flowID struct {
	priority int
	tenant   string
	session  uint64
}

// The heaps of a flow.
const (
	byService = iota // the first has attained the least service, for its weight
	byWaiting        // the first has the most requests that wait, for its weight
)

var never = math.Inf(-1)

// init makes f a new flow.
func (f *flow) init(id flowID, parent *flow) *flow {
	*f = flow{id: id, parent: parent, until: never, below: [2]flows{{kind: byService}, {kind: byWaiting}}, line: line{kind: ofSession}}
	return f
}

// charge adds tokens to the attained service at that age, or takes some back.
func (f *flow) charge(age, tokens float64) {
	if sum := f.attained(age) + tokens; sum > 0 {
		f.until = age + math.Log2(sum/trifle)
	} else {
		f.until = never
	}
}

// attained is the attained service at that age, in tokens.
func (f *flow) attained(age float64) float64 { return trifle * math.Exp2(f.until-age) }

// queued is how many requests wait for each unit of the weight, if more of them did.
func (f *flow) queued(more int) float64 { return float64(f.waiting+more) * math.Exp2(-f.shift) }

// flows is a heap of flows, for container/heap.
type flows struct {
	kind int
	list []*flow
}

func (h *flows) Len() int { return len(h.list) }

func (h *flows) Less(i, j int) bool {
	a, b := h.list[i], h.list[j]
	if h.kind == byWaiting {
		x, y := a.queued(0), b.queued(0)
		return x > y || x == y && a.turn > b.turn
	}
	x, y := a.until-a.shift, b.until-b.shift
	return x < y || x == y && a.turn < b.turn
}

func (h *flows) Swap(i, j int) {
	h.list[i], h.list[j] = h.list[j], h.list[i]
	h.list[i].at[h.kind], h.list[j].at[h.kind] = i, j
}

func (h *flows) Push(x any) {
	f := x.(*flow)
	f.at[h.kind] = len(h.list)
	h.list = append(h.list, f)
}

func (h *flows) Pop() any {
	last := len(h.list) - 1
	f := h.list[last]
	h.list[last], h.list = nil, h.list[:last]
	return f
}

// line is requests in the order of their arrival. A request is in two of them.
type line struct {
	kind        int
	first, last *Waiter
}

const (
	ofPriority = iota
	ofSession
)

func (l *line) push(w *Waiter) {
	w.prev[l.kind], w.next[l.kind] = l.last, nil
	if l.last != nil {
		l.last.next[l.kind] = w
	} else {
		l.first = w
	}
	l.last = w
}

func (l *line) remove(w *Waiter) {
	prev, next := w.prev[l.kind], w.next[l.kind]
	if prev != nil {
		prev.next[l.kind] = next
	} else {
		l.first = next
	}
	if next != nil {
		next.prev[l.kind] = prev
	} else {
		l.last = prev
	}
	w.prev[l.kind], w.next[l.kind] = nil, nil
}
