package bench

import (
	"errors"
	"sync"
	"time"
)

// modelClock runs a fleet against the wall clock, some times faster than real. What is computed late, because the machine was
// busy, still has the time that it was due at: lateness does not add up.
type modelClock struct {
	speed float64
	began time.Time
	wait  *waiter

	mu    sync.Mutex
	fleet *modelFleet
	ended bool
	done  []handoverTimes
	last  map[*modelSeq]time.Duration // when those that stream have had their last token
	gaps  []time.Duration             // between two tokens of an answer, as they were due
	late  []time.Duration             // by which tokens were told later than that, on the wall clock
}

// handoverTimes are moments of one hand-over, in nanoseconds of the wall clock since 1970.
type handoverTimes struct {
	Asked    int64 `json:"asked"`    // decode's leg came
	Finished int64 `json:"finished"` // prefill was done
	First    int64 `json:"first"`    // decode's first token
}

// forever bounds the wait for something to happen, so that one that is missed does no harm.
const forever = time.Second

func newModelClock(f *modelFleet, speed float64) (*modelClock, error) {
	w, err := newWaiter()
	if err != nil {
		return nil, err
	}
	return &modelClock{speed: speed, began: time.Now(), wait: w, fleet: f, last: map[*modelSeq]time.Duration{}}, nil
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
		next, any := c.fleet.next()
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
	for _, t := range c.fleet.advance(c.virtual(now)) {
		c.late = append(c.late, now.Sub(c.wall(t.at)))
		if h := t.seq.over; h != nil && t.nth == 1 {
			c.done = append(c.done, handoverTimes{
				Asked: c.wall(h.asked).UnixNano(), Finished: c.wall(h.finished).UnixNano(), First: c.wall(t.at).UnixNano(),
			})
		}
		if t.nth > 1 {
			c.gaps = append(c.gaps, t.at-c.last[t.seq])
		}
		if c.last[t.seq] = t.at; t.last {
			delete(c.last, t.seq)
		}
		t.seq.out <- t
	}
}

var errStopped = errors.New("the engines are stopped")

// submit gives a request to an engine.
func (c *modelClock) submit(engine int, s *modelSeq) error {
	s.out = make(chan modelToken, s.answer+1)
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ended {
		return errStopped
	}
	c.catchUpLocked()
	err := c.fleet.submit(engine, s)
	c.wait.wake()
	return err
}

// cancel ends a request whose client has left. It may be called at any time.
func (c *modelClock) cancel(s *modelSeq) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ended {
		return
	}
	c.catchUpLocked()
	c.fleet.cancel(s)
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
func (c *modelClock) sums() (itl, late quantiles) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return quantilesOf(c.gaps), quantilesOf(c.late)
}

// read lets f look at the fleet as it is now.
func (c *modelClock) read(f func(*modelFleet)) {
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
