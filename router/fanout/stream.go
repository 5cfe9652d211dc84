package fanout

import (
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"time"

	"pdrouter/router/dispatch"
	"pdrouter/router/exchange"
	"pdrouter/router/reason"
	"pdrouter/router/relay"
	"pdrouter/router/report"
)

// writer is how the answer is written to the client.
type writer struct {
	exchange.ClientWriter
	once sync.Once // the request itself has ended

	every   time.Duration // of silence, before a comment; 0: none
	silence *time.Timer   // wakes the reader; nil before the first wait
	waits   bool          // silence is running
	silent  bool          // nothing came in its time
}

// SetClient sets the client's connection, and the deadline of the first write to it.
func (w *writer) SetClient(conn net.Conn) {
	w.Conn = conn
	w.ExtendDeadline()
}

// Read returns events as they come. io.EOF only follows the one terminal event.
func (f *Fan) Read(p []byte) (int, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for f.from == len(f.out) {
		if f.err != nil {
			return 0, f.err
		}
		if f.silent { // what is in out is whole events, so it comes between two
			f.out = append(f.out, relay.KeepAliveEvent...)
			break
		}
		f.arm()
		f.changed.Wait()
	}
	f.disarm()
	f.ExtendDeadline()
	n := copy(p, f.out[f.from:])
	if f.from += n; f.from == len(f.out) {
		f.out, f.from = f.out[:0], 0
		if cap(f.out) > 4*room {
			f.out = nil
		}
	}
	f.changed.Broadcast()
	return n, nil
}

// arm wakes a waiting reader for a keep-alive. f.mu is held.
func (f *Fan) arm() {
	if f.every <= 0 || f.Conn == nil || f.waits {
		return
	}
	f.waits = true
	if f.silence != nil {
		f.silence.Reset(f.every)
		return
	}
	f.silence = time.AfterFunc(f.every, func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.silent, f.waits = f.waits, false
		f.changed.Broadcast()
	})
}

// disarm stops that: there is something to read. f.mu is held.
func (f *Fan) disarm() {
	if f.waits {
		f.silence.Stop()
	}
	f.silent, f.waits = false, false
}

// CloseWithError tells how the stream ended: nil only if the client got every byte.
func (f *Fan) CloseWithError(err error) error {
	f.mu.Lock()
	f.disarm()
	whole := errors.Is(f.err, io.EOF)
	f.mu.Unlock()
	switch {
	case err == nil && whole:
		f.end(dispatch.Completed, reason.None, exchange.Reply{})
	case errors.Is(err, os.ErrDeadlineExceeded):
		f.end(dispatch.ClientLeft, reason.SlowClient, exchange.Reply{})
	default:
		f.end(dispatch.ClientLeft, reason.ClientLeft, exchange.Reply{})
	}
	f.ClearDeadline()
	f.closed()
	return nil
}

// closed notes that the client is served. It may be called twice.
func (f *Fan) closed() {
	f.once.Do(func() {
		f.clientWatch.Stop()
		f.partEnded()
	})
}

// Begun implements exchange.Caller, for the branches.
func (f *Fan) Begun() { f.caller.Begun() }

// Ended implements caller, for the branches.
func (f *Fan) Ended(*exchange.Exchange) { f.partEnded() }

// partEnded notes that a branch, or the request itself, has ended. The last reports the request.
func (f *Fan) partEnded() {
	f.mu.Lock()
	f.open--
	last := f.open == 0
	f.mu.Unlock()
	if last {
		f.finish()
	}
}

// finish reports the request. It happens once, when nothing of it is under way.
func (f *Fan) finish() {
	s := &f.sum
	first := f.branches[0].Sum
	s.Prefill, s.Decode, s.TransferID, s.TokenIDs, s.Why = first.Prefill, first.Decode, first.TransferID, first.TokenIDs, first.Why
	s.Attempts, s.DecodeCachedTokens = 0, -1
	for k, x := range f.branches {
		one := x.Sum
		f.r.Report.AddTransfer(&one)
		s.Parts = append(s.Parts, report.Part{
			Prefill: one.Prefill, Decode: one.Decode, Attempts: one.Attempts, TransferID: one.TransferID, Reason: one.Reason, Transfer: one.Transfer,
			Failures: one.Failures,
		})
		s.Attempts += one.Attempts
		s.OutputTokens += one.OutputTokens
		s.Leaked, s.Late = s.Leaked || one.Leaked, s.Late || one.Late
		s.Phases.Later(one.Phases)
		if k%f.n == 0 { // the prompt is counted once
			s.PromptTokens += one.PromptTokens
			s.CachedTokens += one.CachedTokens
			addPrediction(s, &one)
		}
	}
	s.Phases.Total = time.Since(s.Arrived)
	defer f.r.Report.Finished(s, f.trace, f.s.Observe) // also if a caller panics
	defer f.r.Composed(-1)
	f.caller.FanEnded(f.used())
}

// addPrediction adds what was predicted of the cached tokens of one prompt, and what was counted.
func addPrediction(s, one *report.Summary) {
	s.PredictedCachedTokens += one.PredictedCachedTokens
	s.CachedBy = max(s.CachedBy, one.CachedBy) // the less certain
	if s.CountedCachedTokens < 0 || one.CountedCachedTokens < 0 {
		s.CountedCachedTokens = -1
	} else {
		s.CountedCachedTokens += one.CountedCachedTokens
	}
}

// used is the sum of what the choices have used, with each prompt once. A request that failed before its answer for a fault of the engines has
// used nothing, though some of its choices were under way.
func (f *Fan) used() (sum exchange.UsedTokens) {
	if f.sum.Outcome == dispatch.FailedBefore {
		switch {
		case !exchange.FailedAtWork(f.why):
			return exchange.UsedTokens{}
		case f.why == reason.AnswerTooLarge && !f.unbounded:
			return exchange.UsedTokens{Unknown: true}
		}
	}
	prompt := 0
	for k, x := range f.branches {
		u := x.Used()
		if k%f.n == 0 {
			prompt = 0
			sum.Cached += u.Cached
		}
		sum.Prompt += max(0, u.Prompt-prompt)
		prompt = max(prompt, u.Prompt)
		sum.Answer += u.Answer
		sum.Unknown = sum.Unknown || u.Unknown
	}
	return sum
}
