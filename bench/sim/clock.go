package sim

import (
	"errors"
	"sync"
	"time"

	"pdrouter/bench/load"
)

// modelClock runs a fleet against the wall clock, some times faster than real. What is computed late, because the machine was
// busy, still has the time that it was due at: lateness does not add up.
type modelClock struct {
	speed float64
	began time.Time
	wait  *waiter

	mu    sync.Mutex
	fleet *ModelFleet
	ended bool
	done  []handoverTimes
	last  map[*ModelSeq]time.Duration // when those that stream have had their last token
	gaps  []time.Duration             // between two tokens of an answer, as they were due
	late  []time.Duration             // by which tokens were told later than that, on the wall clock
}

// handoverTimes are moments of one hand-off, in nanoseconds of the wall clock since 1970.
type handoverTimes struct {
	Asked    int64 `json:"asked"`    // decode's leg came
	Finished int64 `json:"finished"` // prefill was done
	First    int64 `json:"first"`    // decode's first token
}

// forever bounds the wait for something to happen, so that one that is missed does no harm.
const forever = time.Second

func newModelClock(f *ModelFleet, speed float64) (*modelClock, error) {
	w, err := newWaiter()
	if err != nil {
		return nil, err
	}
	return &modelClock{speed: speed, began: time.Now(), wait: w, fleet: f, last: map[*ModelSeq]time.Duration{}}, nil
}

// virtual is a moment in the fleet's time.
func (c *modelClock) virtual(at time.Time) time.Duration {
	return time.Duration(float64(at.Sub(c.began)) * c.speed)
}

// wall is a moment of the fleet's time on the wall clock.
func (c *modelClock) wall(at time.Duration) time.Time {
	return c.began.Add(time.Duration(float64(at) / c.speed))
}

// run lets everything happen at its time until close is called.
func (c *modelClock) run() {
	defer c.wait.close()
	for {
		c.mu.Lock()
		c.catchUpLocked()
		next, any := c.fleet.Next()
		ended := c.ended
		c.mu.Unlock()
		if ended {
			return
		}
		d := forever
		if any {
			d = min(d, time.Until(c.wall(next)))
		}
		if d > 0 {
			c.wait.wait(d)
		}
	}
}

// catchUpLocked lets happen what is due, and tells whoever waits for it. Their channels have room for all that comes.
func (c *modelClock) catchUpLocked() {
	now := time.Now()
	for _, t := range c.fleet.Advance(c.virtual(now)) {
		c.late = append(c.late, now.Sub(c.wall(t.At)))
		if h := t.Seq.over; h != nil && t.nth == 1 {
			c.done = append(c.done, handoverTimes{
				Asked: c.wall(h.asked).UnixNano(), Finished: c.wall(h.finished).UnixNano(), First: c.wall(t.At).UnixNano(),
			})
		}
		if t.nth > 1 {
			c.gaps = append(c.gaps, t.At-c.last[t.Seq])
		}
		if c.last[t.Seq] = t.At; t.Last {
			delete(c.last, t.Seq)
		}
		t.Seq.out <- t
	}
}

var errStopped = errors.New("the engines are stopped")

// submit gives a request to an engine.
func (c *modelClock) submit(engine int, s *ModelSeq) error {
	s.out = make(chan ModelToken, s.Answer+1)
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ended {
		return errStopped
	}
	c.catchUpLocked()
	err := c.fleet.Submit(engine, s)
	c.wait.wake()
	return err
}

// cancel ends a request whose client has left. It may be called at any time.
func (c *modelClock) cancel(s *ModelSeq) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ended {
		return
	}
	c.catchUpLocked()
	c.fleet.Cancel(s)
	delete(c.last, s)
	c.wait.wake()
}

// close ends run.
func (c *modelClock) close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.ended {
		c.ended = true
		c.wait.wake()
	}
}

// sums sums up the times between two tokens as they were due, and by how much they were told later.
func (c *modelClock) sums() (itl, late load.Quantiles) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return load.QuantilesOf(c.gaps), load.QuantilesOf(c.late)
}

// read lets f look at the fleet as it is now.
func (c *modelClock) read(f func(*ModelFleet)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.catchUpLocked()
	f(c.fleet)
}

// handovers takes those that were done.
func (c *modelClock) handovers() []handoverTimes {
	c.mu.Lock()
	defer c.mu.Unlock()
	done := c.done
	c.done = nil
	return done
}
