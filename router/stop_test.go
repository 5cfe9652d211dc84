package router

import (
	"fmt"
	"strings"
	"testing"

	"pdrouter/router/config"
	"pdrouter/router/openai"
	"pdrouter/router/reason"
)

// TestStopLists: engines accept longer lists of stop strings than OpenAI does, and so does the gateway, up to a bound.
func TestStopLists(t *testing.T) {
	lim := limitsOf(config.Config{}.WithDefaults())
	for _, row := range []struct {
		sh   openai.Shape
		body string
	}{
		{openai.ShapeCompletions, `{"model":"m","prompt":"a","stop":[%s]}`},
		{openai.ShapeChat, `{"model":"m","messages":[],"stop":[%s]}`},
		{openai.ShapeMessages, `{"model":"m","messages":[],"max_tokens":9,"stop_sequences":[%s]}`},
		{openai.ShapeGenerate, `{"model":"m","token_ids":[1],"sampling_params":{"stop":[%s]}}`},
	} {
		for n, refused := range map[int]bool{1: false, 5: false, 128: false, 129: true} {
			_, e := openai.ParseBody(row.sh, fmt.Appendf(nil, row.body, strings.TrimSuffix(strings.Repeat(`"a",`, n), ",")), lim)
			if (e != nil) != refused || refused && e.Reason != reason.OverCap {
				t.Errorf("%s: %d stop strings: %v; want refused %v", row.body, n, e, refused)
			}
		}
	}
}
