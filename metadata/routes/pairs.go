package routes

import (
	"encoding/json"
	"fmt"
	"mime"
	"net/http"
	"slices"
	"strings"
	"text/tabwriter"

	"pdrouter/metadata"
)

// listPairs answers with every prefill engine and every decode engine of its model. An agent sees
// only the pairs of its own engine, and a caller that may read certain engines only the pairs among these.
func (h *Handler) listPairs(w http.ResponseWriter, r *http.Request) error {
	caller, err := h.auth.Authorize(r, Access{Action: List})
	if err != nil {
		return err
	}
	query := r.URL.Query()
	model, prefill, decode := query.Get("model"), query.Get("prefill"), query.Get("decode")
	pairs := []metadata.PairState{}
	if h.pairs != nil {
		for _, p := range h.pairs() {
			if caller.sees(p) && matches(model, p.Model) && matches(prefill, p.Prefill) && matches(decode, p.Decode) {
				if caller.Engine != "" {
					p.Why = forAgents(p)
				}
				pairs = append(pairs, p)
			}
		}
	}
	if accepts(r, "text/plain") {
		return sendBytes(w, "text/plain; charset=utf-8", pairsTable(pairs), nil)
	}
	b, err := json.Marshal(map[string][]metadata.PairState{"pairs": pairs})
	return sendBytes(w, "application/json", b, err)
}

// sees reports whether the caller may know of a pair.
func (c Caller) sees(p metadata.PairState) bool {
	switch {
	case c.Engine == "" && len(c.Reads) == 0, c.Engine != "" && (c.Engine == p.Prefill || c.Engine == p.Decode):
		return true
	}
	return slices.Contains(c.Reads, p.Prefill) && slices.Contains(c.Reads, p.Decode)
}

// forAgents is why a pair is not as it should be, without what the other engine's records say: who may not read these is not
// to learn it here.
func forAgents(p metadata.PairState) string {
	if p.Reason == "" || p.Pairable {
		return p.Why
	}
	return p.Reason
}

// matches reports whether a query's value, if it has one, is the one that is there.
func matches(want, got string) bool { return want == "" || want == got }

// pairsTable writes pairs for people: what does not work comes first.
func pairsTable(pairs []metadata.PairState) []byte {
	pairs = slices.Clone(pairs)
	state := func(p metadata.PairState) int {
		switch {
		case !p.Pairable:
			return 0
		case !p.Warm:
			return 1
		}
		return 2
	}
	slices.SortStableFunc(pairs, func(a, b metadata.PairState) int { return state(a) - state(b) })
	var b strings.Builder
	t := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "STATE\tMODEL\tPREFILL\tDECODE\tWHY")
	for _, p := range pairs {
		why := p.Why
		if why == "" {
			why = "-"
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\n", [...]string{"not pairable", "cold", "warm"}[state(p)], p.Model, p.Prefill, p.Decode, why)
	}
	t.Flush() // a strings.Builder takes everything
	return []byte(b.String())
}

// accepts reports whether the caller names a media type among what it accepts.
func accepts(r *http.Request, kind string) bool {
	return slices.ContainsFunc(strings.Split(r.Header.Get("Accept"), ","), func(part string) bool {
		got, _, err := mime.ParseMediaType(part)
		return err == nil && got == kind
	})
}
