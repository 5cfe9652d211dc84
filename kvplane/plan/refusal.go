package plan

import "fmt"

// Refusal says why nothing may be sent between two ranks, or for one transfer, and names both sides' values.
type Refusal struct {
	Unplannable bool   // the two layouts do not fit each other; else P's blocks and D's need of one transfer do not
	What        string // the quantity that does not fit
	P, D        string // its values
}

// Error returns "kvplane: what: … on P, … on D".
func (r *Refusal) Error() string { return "kvplane: " + r.Text() }

// Text is Error without the package's name, as it travels in a STATUS.
func (r *Refusal) Text() string { return r.What + ": " + r.P + " on P, " + r.D + " on D" }

func unplannable(what string, p, d any) *Refusal {
	return &Refusal{Unplannable: true, What: what, P: fmt.Sprint(p), D: fmt.Sprint(d)}
}

func short(what string, p, d any) *Refusal {
	return &Refusal{What: what, P: fmt.Sprint(p), D: fmt.Sprint(d)}
}
