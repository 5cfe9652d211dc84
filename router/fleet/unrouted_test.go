package fleet

import (
	"testing"
	"time"

	"pdrouter/policies/forecast"
)

// TestUnroutedOf: what two readings in a row have beyond what gateways know of counts, and nothing else.
func TestUnroutedOf(t *testing.T) {
	said := func(running, waiting, deferred, held int) Report {
		return Report{Running: running, Waiting: waiting, Deferred: deferred, Held: held}
	}
	for name, row := range map[string]struct {
		was, last reading
		want      forecast.Unrouted
	}{
		"nothing":                  {},
		"what gateways have":       {reading{Report: said(5, 2, 0, 900), own: 4, elsewhere: 3, streams: 5}, reading{Report: said(5, 2, 0, 900), own: 4, elsewhere: 3, streams: 5}, forecast.Unrouted{}},
		"less than gateways have":  {reading{Report: said(1, 0, 0, 0), own: 4}, reading{Report: said(0, 1, 0, 0), own: 4}, forecast.Unrouted{}},
		"one reading alone":        {reading{Report: said(4, 0, 0, 0), own: 4}, reading{Report: said(9, 3, 0, 700), own: 4, streams: 4}, forecast.Unrouted{}},
		"only the one before":      {reading{Report: said(9, 3, 0, 700), own: 4, streams: 4}, reading{Report: said(4, 0, 0, 0), own: 4}, forecast.Unrouted{}},
		"the fewer of both":        {reading{Report: said(9, 0, 0, 5000)}, reading{Report: said(7, 0, 0, 3000)}, forecast.Unrouted{Streams: 7, Context: 3000}},
		"beside a gateway's":       {reading{Report: said(9, 0, 0, 5000), own: 4, streams: 4, context: 1500}, reading{Report: said(9, 0, 0, 4000), own: 2, streams: 2, context: 1000}, forecast.Unrouted{Streams: 5, Context: 3000}},
		"those that wait":          {reading{Report: said(2, 6, 0, 0)}, reading{Report: said(2, 5, 0, 0)}, forecast.Unrouted{Prompts: 5, Streams: 2}},
		"a gateway's may wait":     {reading{Report: said(8, 6, 0, 0), own: 4, elsewhere: 1, streams: 3}, reading{Report: said(8, 6, 0, 0), own: 4, elsewhere: 1, streams: 3}, forecast.Unrouted{Prompts: 4, Streams: 5}},
		"a gateway's alone wait":   {reading{Report: said(4, 6, 0, 0), own: 6}, reading{Report: said(4, 6, 0, 0), own: 6}, forecast.Unrouted{Streams: 4}},
		"waiting for KV":           {reading{Report: said(3, 5, 4, 0), own: 4, streams: 4}, reading{Report: said(3, 5, 4, 0), own: 4, streams: 4}, forecast.Unrouted{Prompts: 1, Streams: 3}},
		"held by what is known":    {reading{Report: said(3, 0, 0, 500), own: 1, streams: 1, context: 800}, reading{Report: said(3, 0, 0, 500), own: 1, streams: 1, context: 800}, forecast.Unrouted{Streams: 2}},
		"it does not say how much": {reading{Report: said(3, 0, 0, -1)}, reading{Report: said(3, 0, 0, -1)}, forecast.Unrouted{Streams: 3}},
		"others knew late":         {reading{Report: said(6, 0, 0, 0), elsewhere: 6}, reading{Report: said(6, 0, 0, 0), elsewhere: 2}, forecast.Unrouted{}},
	} {
		t.Run(name, func(t *testing.T) {
			if got := unroutedOf(&row.was, &row.last); got != row.want {
				t.Errorf("%+v; want %+v", got, row.want)
			}
		})
	}
}

// TestReports: reports that are too close together, or too far apart, are not two in a row; legs that begin while the engine is asked, and those that
// other gateways tell of later, are not taken for unrouted; and what is found is over when two reports are missing.
func TestReports(t *testing.T) {
	const due = 2 * time.Second
	f := fleetOf(t, ofEngines("a"), Parts{Planner: firstOf{}}, nil)
	e, now := f.Engine("a"), time.Now()
	requests := func() int {
		n, _ := e.unroutedAt(now)
		return n
	}
	said := Report{Running: 5, Waiting: 3, Held: -1, Computed: -1}
	report := func(after time.Duration) {
		now = now.Add(after)
		e.NoteReport(said, e.CountLegs(), now, due)
	}
	report(0)
	report(ReportsApart / 2)
	if n := requests(); n != 0 {
		t.Errorf("two reports at once: %d", n)
	}
	report(3 * due)
	if n := requests(); n != 0 {
		t.Errorf("a report after a long time: %d", n)
	}
	report(due)
	if n := requests(); n != 8 || e.backlog(now) <= 0 || e.Requests(now) != 8 {
		t.Errorf("two reports: %d, backlog %d", n, e.backlog(now))
	}
	e.Enter()
	e.InFlight.Add(-1)
	report(due)
	before := e.CountLegs()
	e.Enter()
	e.Enter()
	now = now.Add(due)
	e.InFlight.Add(-2) // they end before the answer is there
	e.NoteReport(said, before, now, due)
	if n := requests(); n != 6 {
		t.Errorf("with two legs that began meanwhile: %d; want 6", n)
	}
	e.SetOthers(Others{InFlight: 5})
	if n := requests(); n != 1 || e.Requests(now) != 6 {
		t.Errorf("with five of another gateway that tells of them now: %d; want 1", n)
	}
	e.SetOthers(Others{})
	report(due)
	report(due)
	if n := requests(); n != 3 {
		t.Errorf("five of another gateway have ended since the reading before: %d; want 3", n)
	}
	report(due)
	if n := requests(); n != 8 {
		t.Errorf("a reading later: %d; want 8", n)
	}
	at, were := now, 8
	for now = at; now.Before(at.Add(2 * due)); now = now.Add(due / 8) {
		n := requests()
		if age := now.Sub(at); n > were || age <= due && n != 8 || e.UnroutedAt(now) == nil {
			t.Errorf("after %v: %d", age, n)
		}
		were = n
	}
	if now = at.Add(2 * due); requests() != 0 || e.UnroutedAt(now) != nil || e.ForecastAt(now) != (EngineForecast{}) {
		t.Errorf("without a report: %d, %+v", requests(), e.ForecastAt(now))
	}
}
