package admission

import "fmt"

// Wait says why a request waited, or was refused.
type Wait struct {
	Fair      bool    // the order is by attained service
	Ahead     int     // requests that waited when it came
	Tenant    int     // of those, of its tenant
	Served    float64 // tokens that its tenant had received then, as they count for the order
	Session   float64 // of those, tokens of its session; 0 if that has no name
	Others    uint64  // places that others got while it waited
	ByArrival bool    // it got its place because it came first, and not by what its tenant and session had received
}

// String is for people.
func (w Wait) String() string {
	if !w.Fair {
		return fmt.Sprintf("%d requests waited before it; %d others got a place meanwhile", w.Ahead, w.Others)
	}
	s := fmt.Sprintf("%d requests waited before it, %d of them of its tenant; that had received %.0f tokens lately, its session %.0f; %d others got a place meanwhile",
		w.Ahead, w.Tenant, w.Served, w.Session, w.Others)
	if w.ByArrival {
		s += "; it got one by arrival"
	}
	return s
}

// waitOf is what a request finds that comes now.
func (q *waitlist) waitOf(r *Request) Wait {
	w := Wait{Fair: q.fair, Ahead: q.waiting}
	if t := q.known[flowID{r.Priority, r.Tenant, 0}]; t != nil {
		w.Tenant, w.Served = t.waiting, t.attained(q.age)
	}
	if s := q.known[flowID{r.Priority, r.Tenant, r.Session}]; s != nil && r.Session != 0 {
		w.Session = s.attained(q.age)
	}
	return w
}
