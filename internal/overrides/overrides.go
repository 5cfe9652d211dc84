// Package overrides has what administrators want of engines, whatever the configuration and its sources say: added, drained, in use
// again, removed. A Store keeps the latest override of each engine and shares it with other gateways. It applies nothing: that is for
// internal/fleetview, which merges all of them with the configuration. internal/adminapi makes them.
package overrides

import (
	"time"

	"pdrouter/router/config"
)

// Override is what administrators want of one engine. It is never changed; a newer one replaces it. Gateways share it as JSON.
type Override struct {
	Engine    string         `json:"engine"`
	Model     string         `json:"model,omitempty"` // with Entry: where it was added
	List      string         `json:"list,omitempty"`
	Entry     *config.Engine `json:"entry,omitempty"`     // of an engine that was added; nil for one that comes from elsewhere
	Drain     Drain          `json:"drain,omitempty"`     // whatever its source says
	Removed   bool           `json:"removed,omitempty"`   // it is to be drained, and then to be gone
	Wait      *time.Duration `json:"wait,omitempty"`      // for its requests, at most, when it is removed; nil: until they end
	By        string         `json:"by"`                  // the administrator
	At        int64          `json:"at"`                  // nanoseconds since 1970: when, or one more than of what it replaces
	Refreshed int64          `json:"refreshed,omitempty"` // nanoseconds since 1970: when a gateway that holds it shared it last; 0 in a Store
}

// Drain is what administrators want of an engine's draining.
type Drain string

// What can be wanted of draining.
const (
	AsSourced Drain = ""    // what its source says
	DrainOn   Drain = "on"  // it takes no more requests
	DrainOff  Drain = "off" // it takes requests
)

// Neutral reports whether nothing is wanted, so that the override is only there to replace older ones.
func (o Override) Neutral() bool { return o.Entry == nil && o.Drain == AsSourced && !o.Removed }

// forgettable reports whether the override may be forgotten in the end: nothing is wanted any more of an engine that anybody has.
func (o Override) forgettable() bool { return o.Neutral() || o.Removed && o.Entry != nil }

// forgotten reports whether the override has replaced older ones for long enough.
func (o Override) forgotten(now time.Time) bool {
	return o.forgettable() && now.Sub(o.Time()) > forgottenAfter
}

// newer reports whether o replaces other. Any two gateways decide alike.
func (o Override) newer(other Override) bool {
	if o.At != other.At {
		return o.At > other.At
	}
	return o.By > other.By
}

// Time returns when the override was made.
func (o Override) Time() time.Time { return time.Unix(0, o.At) }

// refreshed returns when a gateway last said that it holds the override.
func (o Override) refreshed() time.Time { return time.Unix(0, max(o.At, o.Refreshed)) }

// Wanted says what is wanted of the engine, for people.
func (o Override) Wanted() string {
	switch {
	case o.Removed:
		return "removed"
	case o.Entry != nil && o.Drain == DrainOn:
		return "added, drained"
	case o.Entry != nil:
		return "added"
	case o.Drain == DrainOn:
		return "drained"
	case o.Drain == DrainOff:
		return "undrained"
	}
	return "nothing"
}

// ByEngine has the latest override of each engine, by its name.
type ByEngine map[string]Override

// merged returns what holds of two, and whether that is another than o.
func (o ByEngine) merged(others ByEngine) (ByEngine, bool) {
	out, other := make(ByEngine, len(o)), false
	for name, it := range o {
		out[name] = it
	}
	for name, it := range others {
		if was, ok := out[name]; !ok || it.newer(was) {
			out[name], other = it, true
		}
	}
	return out, other
}
