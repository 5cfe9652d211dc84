package embed

import (
	"bytes"
	"encoding/binary"
	"time"

	"pdrouter/kvplane"
	"pdrouter/metadata"
)

// said is what a rank has collected: its report, and what the gateway has told it.
type said struct {
	enrolled bool // the gateway has answered; keys are those that the scheduler has not been told by this rank
	broken   bool // the rank has no agent, and will have none
	keys     [][]byte
	now      time.Time // by the gateway's clock, when this was collected; zero: not known
	report   kvplane.RankReport
}

// The form of said: a version, a byte with bits, keys and time if the gateway has answered, the report's own form.
const (
	saidVersion  = 1
	saidEnrolled = 1
	saidBroken   = 2

	maxSaidKeys = 8
	maxSaidKey  = 255 // bytes
)

func (s *said) marshal() []byte {
	b := []byte{saidVersion, 0}
	if s.broken {
		b[1] |= saidBroken
	}
	if s.enrolled {
		b[1] |= saidEnrolled
		var now int64
		if !s.now.IsZero() {
			now = s.now.UnixMilli()
		}
		b = binary.BigEndian.AppendUint64(b, uint64(now))
		b = append(b, byte(min(len(s.keys), maxSaidKeys)))
		for _, k := range s.keys[:min(len(s.keys), maxSaidKeys)] {
			b = append(append(b, byte(len(k))), k...)
		}
	}
	return append(b, s.report.Marshal()...)
}

func parseSaid(b []byte) (said, error) {
	var s said
	bad := func() (said, error) { return said{}, wrong(Argument, "embed: not what a rank has collected") }
	if len(b) < 2 || b[0] != saidVersion || b[1]&^(saidEnrolled|saidBroken) != 0 {
		return bad()
	}
	s.enrolled, s.broken = b[1]&saidEnrolled != 0, b[1]&saidBroken != 0
	b = b[2:]
	if s.enrolled {
		if len(b) < 9 || b[8] > maxSaidKeys {
			return bad()
		}
		if ms := int64(binary.BigEndian.Uint64(b)); ms != 0 {
			s.now = time.UnixMilli(ms)
		}
		n := int(b[8])
		b = b[9:]
		for range n {
			if len(b) < 1 || b[0] == 0 || len(b) < 1+int(b[0]) {
				return bad()
			}
			s.keys = append(s.keys, bytes.Clone(b[1:1+int(b[0])]))
			b = b[1+int(b[0]):]
		}
	}
	var err error
	if s.report, err = kvplane.ParseRankReport(b); err != nil {
		return said{}, wrong(Argument, "embed: %w", err)
	}
	return s, nil
}

// enrolment is what the gateway answered last to the publishing of a rank's record.
type enrolment struct {
	known bool
	keys  [][]byte
	now   time.Time
	told  time.Time // when it said so
	fresh bool      // the scheduler does not know the keys
	due   bool      // nor that the gateway names them still
}

// take notes an answer.
func (e *enrolment) take(a metadata.Enrolment) {
	same := e.known && len(e.keys) == len(a.Keys)
	for i := 0; same && i < len(a.Keys); i++ {
		same = bytes.Equal(a.Keys[i], e.keys[i])
	}
	*e = enrolment{known: true, keys: a.Keys, now: a.Now, told: time.Now(), fresh: e.fresh || !same, due: true}
}

// fill adds to what is collected: the keys once for each answer, as another rank may have been told newer ones since. The
// gateway's clock has gone on since it answered.
func (e *enrolment) fill(s *said) {
	if !e.known {
		return
	}
	s.enrolled = true
	if e.due {
		s.keys = e.keys
	}
	if !e.now.IsZero() && e.now.UnixMilli() != 0 {
		s.now = e.now.Add(time.Since(e.told))
	}
	e.fresh, e.due = false, false
}
