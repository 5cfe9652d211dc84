package embed

import (
	"encoding/json"

	"pdrouter/kvplane/sched"
)

// Status returns JSON for people and metrics.
func (s *Scheduler) Status() ([]byte, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	x := struct {
		Kind       string `json:"kind"`
		Engine     string `json:"engine"`
		Generation uint64 `json:"generation"`
		Control    string `json:"control,omitempty"` // where its routes listen
		Legs       int    `json:"legs"`              // transfers not accounted for yet
		Handshakes int    `json:"handshakes"`
		Missed     uint64 `json:"missed"` // RankReports that never came
		schedulerCounts
		Ignored sched.Ignored `json:"ignored"`
		// Held is what stays pinned, by the rank that has not let go of it.
		Held map[string]sched.Held `json:"held"`
	}{
		Kind: KindScheduler, Engine: s.cfg.Engine, Generation: s.self.Generation, Legs: len(s.legs),
		Handshakes: s.outcome.Handshakes, schedulerCounts: s.counts, Held: map[string]sched.Held{},
	}
	if s.control != nil {
		x.Control = s.control.address()
	}
	if s.together != nil {
		x.Missed, x.Ignored = s.together.Missed(), s.together.Ignored()
		for rank, h := range s.together.Held(s.now()) {
			x.Held[rank.String()] = h
		}
	}
	return json.Marshal(x)
}
