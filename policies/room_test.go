package policies

import "testing"

// TestRoom: an engine has room as long as prompts wait little there and its streams keep their objective.
func TestRoom(t *testing.T) {
	p := costPolicy(t, ", objective: {ttft: 2s, itl: 50ms}")
	for name, row := range map[string]struct {
		decode []known
		want   bool
	}{
		"idle":                          {[]known{at(0, 0, 0)}, true},
		"a little waits":                {[]known{at(.2, 0, 0)}, true},
		"much waits":                    {[]known{at(.6, 0, 0)}, false},
		"much waits at one of two":      {[]known{at(.6, 0, 0), at(0, 0, 0)}, true},
		"as many streams as it can":     {[]known{at(0, 45, 0)}, false},
		"one more keeps the objective":  {[]known{at(0, 20, 0)}, true},
		"more streams than it can take": {[]known{at(0, 60, 0)}, false},
	} {
		f := fleetOf(nil, row.decode, Demand{Answer: 100})
		q := Request{PromptTokens: 1000, Unsplittable: Aggregated}
		if got := p.Room(q, f, Draw{}, 0, 0); got != row.want {
			t.Errorf("%s: room %v; want %v", name, got, row.want)
		}
	}
	for ttft, want := range map[float64]bool{1: false, 2: true, 3600: true} { // of the request's own; the policy's is 2 s
		for wait, room := range map[float64]bool{.2: want, .6: false} {
			q := Request{PromptTokens: 1000, Unsplittable: Aggregated, Objective: Objective{TTFT: ttft}}
			if got := p.Room(q, fleetOf(nil, []known{at(wait, 0, 0)}, Demand{Answer: 100}), Draw{}, 0, 0); got != room {
				t.Errorf("for a request that is to begin within %v s, where %v s of prompts wait: room %v; want %v", ttft, wait, got, room)
			}
		}
	}
	split := fleetOf([]known{at(0, 0, 0)}, []known{at(0, 25, 0)}, Demand{Answer: 100, Move: [3]float64{.5}})
	if q := (Request{PromptTokens: 2000}); !p.Choose(q, split, Draw{}).Split || !p.Room(q, split, Draw{}, 0, 0) {
		t.Errorf("a prefill engine that does nothing has no room because a hand-off takes longer than idle engines would without: %+v", p.Choose(q, split, Draw{}))
	}
	q := Request{PromptTokens: 100_000, Unsplittable: Aggregated} // 11 s
	if f := fleetOf(nil, []known{at(0, 0, 0)}, Demand{}); !p.Room(q, f, Draw{}, 0, 0) {
		t.Error("an idle engine has no room for what it cannot serve in time")
	}
	f := fleetOf(nil, []known{at(0, 0, 0)}, Demand{})
	f.Decode[0].Usable = false
	if !p.Room(q, f, Draw{}, 0, 0) {
		t.Error("a request waits for room where no engine can be used; want it to go on, and be told that")
	}
}

// TestRoomBesideUnbegun: requests that engines do not have yet take their room, at each engine that can be used an even part of it.
func TestRoomBesideUnbegun(t *testing.T) {
	p := costPolicy(t, ", objective: {ttft: 2s, itl: 50ms}")
	q := Request{PromptTokens: 1000, Unsplittable: Aggregated}
	for name, row := range map[string]struct {
		decode          []known
		unbegun, tokens int
		want            bool
	}{
		"one":                            {[]known{at(0, 0, 0)}, 1, 1000, true},
		"three":                          {[]known{at(0, 0, 0)}, 3, 3000, false},
		"three for two engines":          {[]known{at(0, 0, 0), at(0, 0, 0)}, 3, 3000, true},
		"six for two engines":            {[]known{at(0, 0, 0), at(0, 0, 0)}, 6, 6000, false},
		"one beside prompts that wait":   {[]known{at(.2, 0, 0)}, 1, 1000, false},
		"thirty beside twenty streams":   {[]known{at(0, 20, 0)}, 30, 30, false},
		"one beside twenty streams":      {[]known{at(0, 20, 0)}, 1, 1, true},
		"one with a prompt of no tokens": {[]known{at(0, 0, 0)}, 1, 0, true},
	} {
		f := fleetOf(nil, row.decode, Demand{Answer: 100})
		if got := p.Room(q, f, Draw{}, row.unbegun, row.tokens); got != row.want {
			t.Errorf("%s: room %v; want %v", name, got, row.want)
		}
		if f.Forecast.Decode[0] != row.decode[0].Work {
			t.Errorf("%s: the forecast was changed", name)
		}
	}
	split := fleetOf([]known{at(0, 0, 0), at(0, 0, 0)}, []known{at(0, 25, 0)}, Demand{Answer: 100})
	split.Prefill[1].Usable = false
	if q := (Request{PromptTokens: 1000, MustSplit: true}); !p.Room(q, split, Draw{}, 1, 1000) || p.Room(q, split, Draw{}, 3, 3000) {
		t.Errorf("a prefill engine of two that can be used has room beside one prompt: %v, beside three: %v; want true and false", p.Room(q, split, Draw{}, 1, 1000), p.Room(q, split, Draw{}, 3, 3000))
	}
}

// TestMaxWait: a request waits as long as it can be in time, one that cannot be as long as others, and one in sixteen is not bounded.
func TestMaxWait(t *testing.T) {
	o := Objective{TTFT: 2}
	for _, row := range []struct{ idle, want float64 }{{0, 1.75}, {.75, 1}, {1.75, 1.75}, {9, 1.75}} {
		if got, bounded := o.MaxWait(row.idle, 1); got != row.want || !bounded {
			t.Errorf("%v on idle engines: %v, bounded %v; want %v", row.idle, got, bounded, row.want)
		}
	}
	free := 0
	for draw := range uint64(1600) {
		if _, bounded := o.MaxWait(1, draw); !bounded {
			free++
		}
	}
	if free != 100 {
		t.Errorf("%d of 1600 are not bounded; want 100", free)
	}
}

// TestRoomIn: an engine has room when it has computed enough of its prompts, or when enough of its streams have ended.
func TestRoomIn(t *testing.T) {
	p := costPolicy(t, ", objective: {ttft: 2s, itl: 50ms}")
	for name, row := range map[string]struct {
		decode      []known
		least, most float64
	}{
		"idle":              {[]known{at(0, 0, 0)}, 0, 0},
		"prompts":           {[]known{at(3.25, 0, 0)}, 3, 3.3},
		"the shorter queue": {[]known{at(9, 0, 0), at(1.25, 0, 0)}, 1, 1.1},
		"streams":           {[]known{at(0, 60, 0)}, .3, 4}, // they last for 100 tokens of about 60 ms
		"hours":             {[]known{at(9999, 0, 0)}, longestRoom, longestRoom},
	} {
		f := fleetOf(nil, row.decode, Demand{Answer: 100})
		if got := p.RoomIn(Request{PromptTokens: 1000, Unsplittable: Aggregated}, f, Draw{}); got < row.least || got > row.most {
			t.Errorf("%s: room in %v s; want %v to %v", name, got, row.least, row.most)
		}
		if f.Forecast.Decode[0] != row.decode[0].Work {
			t.Errorf("%s: the forecast was changed", name)
		}
	}
}

// TestRoomIsAtTheChosenEngine: where an engine gets less than its full part, room is looked for at the engine that the request then goes to.
func TestRoomIsAtTheChosenEngine(t *testing.T) {
	p := costPolicy(t, ", objective: {ttft: 2s, itl: 50ms}")
	f := fleetOf(nil, []known{at(.6, 0, 0), at(0, 0, 0)}, Demand{Answer: 100})
	f.Decode[1].Share = .2
	chosen := [2]int{}
	for i := range uint64(200) {
		q := Request{PromptTokens: 1000, Unsplittable: Aggregated}
		draw := Draw{Random: mix(i + 1)}
		c := p.Choose(q, f, Draw{Turn: i, Random: draw.Random})
		chosen[c.Decode]++
		if room := p.Room(q, f, draw, 0, 0); room != (c.Decode == 1) {
			t.Fatalf("room %v for a request that goes to engine %d", room, c.Decode)
		}
		if idle := p.OnIdle(q, f, draw); idle.Decode != c.Decode {
			t.Fatalf("it is thought to go to engine %d, and goes to %d", idle.Decode, c.Decode)
		}
	}
	if chosen[1] < 20 || chosen[1] > 60 {
		t.Errorf("the engines got %v of the requests", chosen)
	}
}
