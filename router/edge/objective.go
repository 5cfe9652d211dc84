package edge

import (
	"strconv"
	"time"

	"pdrouter/router/openai"
	"pdrouter/router/reason"
)

// objectiveHeaders say what a request is to keep, in milliseconds: ours, then those of llm-d. The first that is there counts.
var objectiveHeaders = [2][2]string{{"X-Slo-Ttft-Ms", "X-Llm-D-Slo-Ttft-Ms"}, {"X-Slo-Itl-Ms", "X-Llm-D-Slo-Tpot-Ms"}}

// longestObjective bounds what may be asked for.
const longestObjective = time.Hour

// ObjectiveOf returns the times that the request's headers ask for, 0 where they do not. header returns the field with a name.
func ObjectiveOf(header func(name string) []byte) (openai.Objective, *openai.Error) {
	var of [2]time.Duration
	for i, names := range objectiveHeaders {
		for _, name := range names {
			v := header(name)
			if len(v) == 0 {
				continue
			}
			ms, err := strconv.ParseFloat(string(v), 64)
			if of[i] = time.Duration(ms * float64(time.Millisecond)); err != nil || !(ms*float64(time.Millisecond) >= 1) || ms > float64(longestObjective/time.Millisecond) {
				return openai.Objective{}, openai.ErrBadRequest(reason.BadField, name, "%s must be milliseconds, more than 0 and at most %d.", name, longestObjective/time.Millisecond)
			}
			break
		}
	}
	return openai.Objective{TTFT: of[0], ITL: of[1]}, nil
}
