// Package stream decides what the batches of one engine's stream of KV-cache events mean for what is known of the engine: which are entered,
// when batches were lost, when the engine was restarted, when old batches are asked for again. It performs no I/O and reads no clock;
// package kvevents turns sockets into its events and its actions into I/O.
//
// An engine numbers its batches from 0 at each start, one after the other (vLLM distributed/kv_events.py, ZmqEventPublisher). It drops
// batches without a word for a subscriber that is slow or comes late, and keeps the latest for a replay. So a number that is too high shows
// a loss, and a lower one than the last a restart. Across connections numbers prove nothing: another run may have reached any number. There
// the last batch that was entered is the proof: a replay begins with it, and if other bytes come under its number, or none, it is another run.
package stream

import "time"

// EventKind is what has happened.
type EventKind uint8

// The kinds of events.
const (
	Connected    EventKind = iota + 1 // the engine publishes to a new connection
	Disconnected                      // that connection is over; or there is none, and none could be made
	Published                         // a batch came as it was published
	Replayed                          // a batch came in the replay that was asked for last
	ReplayEnded                       // the replay that was asked for last is complete
	ReplayFailed                      // it is not, and will not be
)

// Event is one event.
type Event struct {
	Kind EventKind
	At   time.Time
	Seq  uint64 // of a batch
	Sum  uint64 // of its bytes: equal for equal batches
}

// Action is what the caller must do next.
type Action uint8

// The actions.
const (
	Nothing Action = iota // the batch is known already, or comes when none may
	Enter                 // the batch's events hold
	Forget                // nothing that was entered holds any more
	// Replay: ask for batches from State.From on, in place of any replay under way, and pass each of them and the end. If the event was a
	// published batch, pass it again after that, before others.
	Replay
)

// CoolDown is the shortest time between two replays for lost batches: a replay keeps the engine from publishing.
const CoolDown = 30 * time.Second

// Kept is for how long what is known of an engine outlives its connection, where a replay can prove that it still holds.
const Kept = 10 * time.Minute

// maxRounds bounds the replays one after the other that fill one loss: an engine drops batches of a replay too, if they are read slowly.
const maxRounds = 32

// State is what is known of one stream. The zero value is one that was never connected and has no replays.
type State struct {
	Replays bool // the engine can be asked for old batches

	// What has happened, since the state began.
	Gaps   uint64 // losses of batches that published ones have shown
	Resets uint64 // times that all that was known was forgotten: restarts, and losses that no replay has filled
	Asked  uint64 // replays

	phase  phase
	next   uint64 // the number of the batch that comes next; 0: none was entered
	sum    uint64 // of the batch before
	latest uint64 // number of the latest published batch of this connection, plus 1; 0: none
	rounds int    // replays since the stream was live
	hole   bool   // the replay lacks batches
	gapped time.Time
	over   time.Time // when the last connection was
	gap    uint64    // the published batch that showed the loss that is being repaired
}

type phase uint8

const (
	down      phase = iota
	verifying       // a replay must begin with the batch that was entered last
	replaying
	live
)

// Live reports whether what was entered and not forgotten is what the engine has: it is connected, and no batch is missing.
func (s *State) Live() bool { return s.phase == live }

// From is where the replay that was asked for begins.
func (s *State) From() uint64 {
	if s.phase == verifying {
		return s.next - 1
	}
	return s.next
}

// Step applies one event, appends to out what the caller must do, in that order, and returns it.
func (s *State) Step(e Event, out []Action) []Action {
	switch e.Kind {
	case Connected:
		s.latest, s.rounds = 0, 0
		if s.Replays {
			return s.replay(out)
		}
		s.phase = live
		return s.forget(out) // it may be another run
	case Disconnected:
		if s.phase != down {
			s.phase, s.over = down, e.At
		}
		if !s.Replays || e.At.Sub(s.over) >= Kept { // it may come back as another run, or never; others need the room
			return s.forget(out)
		}
		return out
	case Published:
		return s.published(e, out)
	}
	switch {
	case s.phase != verifying && s.phase != replaying:
		return append(out, Nothing)
	case e.Kind == Replayed:
		return s.replayed(e, out)
	case e.Kind == ReplayFailed:
		s.phase = live
		return s.forget(out)
	case s.phase == verifying: // the batch that was entered last did not come
		return s.replay(s.forget(out))
	case s.hole && s.rounds < maxRounds:
		return s.replay(out)
	}
	s.phase = live
	if s.hole {
		return s.forget(out)
	}
	return out
}

// published is Step for a batch as it was published.
func (s *State) published(e Event, out []Action) []Action {
	switch {
	case s.phase != live:
		return append(out, Nothing)
	case e.Seq < s.latest: // the engine was restarted and the connection was not
		s.latest, s.rounds = 0, 0
		out = s.forget(out)
		if s.Replays {
			return s.replay(out)
		}
	case e.Seq+1 == s.next && e.Sum != s.sum: // the replay was another engine's
		out = s.forget(out)
	case e.Seq < s.next: // it came in the replay
		s.latest = e.Seq + 1
		return append(out, Nothing)
	case e.Seq > s.next && (s.next > 0 || s.Replays):
		if e.Seq != s.gap {
			s.Gaps++
		}
		s.gap = e.Seq
		if s.Replays && (s.gapped.IsZero() || e.At.Sub(s.gapped) >= CoolDown) {
			s.gapped, s.rounds = e.At, 0
			return s.replay(out)
		}
		out = s.forget(out)
	}
	s.latest = e.Seq + 1
	return s.enter(e, out)
}

// replayed is Step for a batch of a replay.
func (s *State) replayed(e Event, out []Action) []Action {
	switch {
	case s.phase == verifying && e.Seq == s.next-1 && e.Sum == s.sum:
		s.phase = replaying
		return append(out, Nothing)
	case s.phase == verifying: // another run, or one that does not keep that batch any more
		return s.replay(s.forget(out))
	case s.next == 0 || e.Seq == s.next: // of an engine that runs for long the first batches are lost
		return s.enter(e, out)
	}
	s.hole = s.hole || e.Seq > s.next
	return append(out, Nothing)
}

func (s *State) enter(e Event, out []Action) []Action {
	s.next, s.sum = e.Seq+1, e.Sum
	return append(out, Enter)
}

func (s *State) forget(out []Action) []Action {
	if s.next == 0 {
		return out
	}
	s.Resets++
	s.next, s.sum = 0, 0
	return append(out, Forget)
}

func (s *State) replay(out []Action) []Action {
	s.Asked++
	s.rounds++
	s.hole = false
	if s.phase = replaying; s.next > 0 {
		s.phase = verifying
	}
	return append(out, Replay)
}

func (a Action) String() string {
	return [...]string{"nothing", "enter", "forget", "replay"}[a]
}
