package kvplane

import "fmt"

// Refusal says why nothing may be sent between two ranks, or for one transfer, and names both sides' values.
type Refusal struct {
	Reason Reason // Unplannable or Short
	What   string // the quantity that does not fit
	P, D   string // its values
}

// Error returns "kvplane: what: … on P, … on D".
func (r *Refusal) Error() string { return "kvplane: " + r.Text() }

// Text is Error without the package's name, as it travels in a STATUS.
func (r *Refusal) Text() string { return r.What + ": " + r.P + " on P, " + r.D + " on D" }

func unplannable(what string, p, d any) *Refusal {
	return &Refusal{Reason: Unplannable, What: what, P: fmt.Sprint(p), D: fmt.Sprint(d)}
}

func short(what string, p, d any) *Refusal {
	return &Refusal{Reason: Short, What: what, P: fmt.Sprint(p), D: fmt.Sprint(d)}
}
