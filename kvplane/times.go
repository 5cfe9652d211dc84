package kvplane

import "time"

// Times are the plane's durations. Zero means the default.
type Times struct {
	Lease    time.Duration // P keeps offered blocks so long without a heartbeat; default 30 s
	Beat     time.Duration // D tells P so often which transfers it still waits for; default Lease/6
	Queue    time.Duration // D keeps a queued transfer alive so long after the last Queued of its engine; default 5 min
	Wait     time.Duration // D waits so long for P's offer unless the Expectation says otherwise; default 30 s
	Deadline time.Duration // D waits so long once P has the offer; default 10 s
	NetDelay time.Duration // how long bytes of a failed or dead writer may be on their way; default 1 s
	Lost     time.Duration // a lost connection fails a transfer after so long; default 1 s
	Resend   time.Duration // first pause before a message is sent again, doubling; default 20 ms
	Pause    time.Duration // longest pause between resends; default 2 s
	Lookup   time.Duration // how long one Directory.Engine may take; default 5 s
}

// WithDefaults returns the times with a default in the place of each zero.
func (t Times) WithDefaults() Times {
	set := func(d *time.Duration, def time.Duration) {
		if *d <= 0 {
			*d = def
		}
	}
	set(&t.Lease, 30*time.Second)
	set(&t.Beat, t.Lease/6)
	set(&t.Queue, 5*time.Minute)
	set(&t.Wait, 30*time.Second)
	set(&t.Deadline, 10*time.Second)
	set(&t.NetDelay, time.Second)
	set(&t.Lost, time.Second)
	set(&t.Resend, 20*time.Millisecond)
	set(&t.Pause, 2*time.Second)
	set(&t.Lookup, 5*time.Second)
	return t
}

// MaxWait bounds the patience of an Expectation.
const MaxWait = 24 * time.Hour
