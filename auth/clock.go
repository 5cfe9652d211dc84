package auth

import "time"

// moment is one reading of the machine's two clocks. What a token says is about the wall clock, which may be set at any
// time; what this process measured itself goes by the one that is never set.
type moment struct {
	wall time.Time
	mono time.Time
}

// present reads the clocks.
func present() moment {
	now := time.Now()
	return moment{wall: now.Round(0), mono: now}
}
