package embed

import (
	"encoding/json"

	"pdrouter/kvplane"
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
		Enrolled   bool   `json:"enrolled"`
		Legs       int    `json:"legs"` // transfers not accounted for yet
		Handshakes int    `json:"handshakes"`
		Missed     uint64 `json:"missed"` // RankReports that never came
		schedulerCounts
		Ignored kvplane.Ignored `json:"ignored"`
	}{
		Kind: KindScheduler, Engine: s.cfg.Engine, Generation: s.self.Generation, Enrolled: s.enrolled, Legs: len(s.legs),
		Handshakes: s.outcome.Handshakes, schedulerCounts: s.counts,
	}
	if s.control != nil {
		x.Control = s.control.address()
	}
	if s.together != nil {
		x.Missed, x.Ignored = s.together.Missed(), s.together.Ignored()
	}
	return json.Marshal(x)
}
