package monitor

import (
	"bytes"
	"cmp"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"pdrouter/router/fleet"
	"pdrouter/router/upstream"
)

// askAdapterSlots asks an engine which adapters it has loaded, where a policy looks at that. One that does not answer says nothing: else what it
// said once would count for as long as its metrics cannot be read.
func (m *Monitor) askAdapterSlots(its *upstream.Timeouts, e *fleet.Engine) {
	var said *fleet.AdapterSlots
	if m.current().Fleet.UsesAdapterSlots(e) {
		held := its.Begin(m.current().Timeouts.SideChannelAnswer())
		defer its.End()
		if status, text, err := Get(held, e, "/metrics", maxMetrics); err == nil && status == http.StatusOK {
			said = parseAdapterSlots(text, e.SchedulerLabel())
		}
	}
	e.AdapterSlots.Store(said)
}

// parseAdapterSlots reads vllm:lora_requests_info from an engine's metrics. Each sample has the adapters of one moment as labels and that moment as
// its value; earlier samples stay. So the latest says what is active now, and going back in time finds the adapters that were computed with last:
// an engine replaces the one that was not used for the longest time. It returns nil if the engine does not say.
func parseAdapterSlots(text []byte, label string) *fleet.AdapterSlots {
	type moment struct {
		at   float64
		line []byte
	}
	var all []moment
	for line := range bytes.Lines(text) {
		if !bytes.HasPrefix(line, []byte("vllm:lora_requests_info{")) {
			continue
		}
		if bytes.Contains(line, []byte(`engine="`)) && !bytes.Contains(line, []byte(label)) { // of another scheduler
			continue
		}
		fields := bytes.Fields(line[bytes.LastIndexByte(line, '}')+1:])
		if len(fields) == 0 {
			continue
		}
		if at, err := strconv.ParseFloat(string(fields[0]), 64); err == nil && at > 0 {
			all = append(all, moment{at, line})
		}
	}
	if len(all) == 0 {
		return nil
	}
	slices.SortFunc(all, func(a, b moment) int { return cmp.Compare(b.at, a.at) })
	slots := labelled(all[0].line, "max_lora")
	if slots < 1 || slots > maxAdapters {
		return nil
	}
	s := &fleet.AdapterSlots{Slots: slots}
	s.Active = addNames(nil, all[0].line, "running_lora_adapters", maxAdapters)
	s.Active = addNames(s.Active, all[0].line, "waiting_lora_adapters", maxAdapters)
	for _, x := range all {
		if s.Loaded = addNames(s.Loaded, x.line, "running_lora_adapters", slots); len(s.Loaded) == slots {
			break
		}
	}
	return s
}

// addNames appends the names in a label that are not in the list yet, up to most in all.
func addNames(to []string, line []byte, label string, most int) []string {
	for name := range strings.SplitSeq(labelText(line, label), ",") {
		name = strings.TrimSpace(name)
		if name != "" && len(name) <= maxModelName && len(to) < most && !slices.Contains(to, name) {
			to = append(to, name)
		}
	}
	return to
}
