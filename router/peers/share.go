package peers

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"pdrouter/policies/forecast"
	"pdrouter/router/fleet"
)

const (
	// mostEngines is how many engines a gateway tells of: those with the most requests in flight. It bounds what is written to about 64 KB.
	mostEngines = 1000
	// mostBytes is the largest entry of another gateway that is read.
	mostBytes = 256 << 10
	// most bounds each number that another gateway tells, so that sums stay numbers.
	most = 1 << 40
)

// share is what one gateway has at engines. It has no word of a prompt.
type share struct {
	Engines map[string]load    `json:"engines,omitempty"`
	Rates   map[string]float64 `json:"rates,omitempty"` // requests a second, by model, of those whose policy prices paths
}

// load is what a gateway has at one engine: requests in flight, prompt tokens yet to compute, answers, tokens that these hold, milliseconds until
// the prompts are computed, thousandths of the recent time in which prompts were computed, and the most requests in flight lately. Gateways of an older
// version do not tell the last one.
type load [7]int64

func loadOf(o fleet.Others) load {
	return load{int64(o.InFlight), int64(o.Backlog), int64(o.Streams), int64(o.Context), int64(o.Wait * 1000), int64(o.Prompts * 1000), int64(o.Most)}
}

func (l load) others() fleet.Others {
	return fleet.Others{InFlight: int(l[0]), Most: int(l[6]), Backlog: int(l[1]), Others: forecast.Others{
		Streams: int(l[2]), Context: int(l[3]), Wait: float64(l[4]) / 1000, Prompts: float64(l[5]) / 1000,
	}}
}

// shareOf is what this gateway has at a fleet's engines.
func shareOf(f *fleet.Fleet, now time.Time) share {
	s := share{Engines: map[string]load{}, Rates: map[string]float64{}}
	for _, e := range f.Engines {
		if l := loadOf(e.Own(now)); l != (load{}) {
			s.Engines[e.Name] = l
		}
	}
	if len(s.Engines) > mostEngines {
		names := make([]string, 0, len(s.Engines))
		for name := range s.Engines {
			names = append(names, name)
		}
		slices.SortFunc(names, func(a, b string) int { return cmp.Or(cmp.Compare(s.Engines[b][0], s.Engines[a][0]), cmp.Compare(a, b)) })
		for _, name := range names[mostEngines:] {
			delete(s.Engines, name)
		}
	}
	for name, m := range f.Models {
		if m.Prices {
			s.Rates[name] = m.Forecast.Rate(fleet.Seconds(now))
		}
	}
	return s
}

func (s share) encode() string {
	b, err := json.Marshal(s)
	if err != nil { // numbers that JSON has no word for: nothing is shared then
		return "{}"
	}
	return string(b)
}

// decode reads what another gateway has told.
func decode(text string) (s share, err error) {
	if len(text) > mostBytes {
		return share{}, fmt.Errorf("peers: %d bytes; want at most %d", len(text), mostBytes)
	}
	if err = json.Unmarshal([]byte(text), &s); err != nil {
		return share{}, fmt.Errorf("peers: %w", err)
	}
	return s, nil
}

// add adds what another gateway has told.
func (s *share) add(o share) {
	for name, l := range o.Engines {
		sum := s.Engines[name]
		for i := range sum {
			sum[i] = min(most, sum[i]+max(0, min(most, l[i])))
		}
		s.Engines[name] = sum
	}
	for model, rate := range o.Rates {
		s.Rates[model] = min(most, s.Rates[model]+max(0, min(most, rate)))
	}
}
