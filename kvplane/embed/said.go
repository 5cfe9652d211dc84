package embed

import (
	"pdrouter/kvplane/sched"
)

// said is what a rank has collected.
type said struct {
	broken bool // the rank has no agent, and will have none
	report sched.RankReport
}

// The form of said: a version, a byte with bits, the report's own form.
const (
	saidVersion = 2
	saidBroken  = 1
)

func (s *said) marshal() []byte {
	b := []byte{saidVersion, 0}
	if s.broken {
		b[1] |= saidBroken
	}
	return append(b, s.report.Marshal()...)
}

func parseSaid(b []byte) (said, error) {
	if len(b) < 2 || b[0] != saidVersion || b[1]&^saidBroken != 0 {
		return said{}, wrong(Argument, "embed: not what a rank has collected")
	}
	report, err := sched.ParseRankReport(b[2:])
	if err != nil {
		return said{}, wrong(Argument, "embed: %w", err)
	}
	return said{broken: b[1]&saidBroken != 0, report: report}, nil
}
