package stock

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"pdrouter/bench/load"
)

// TestThrough reads whole answers, and voids those that are cut, wrong or of another length.
func TestThrough(t *testing.T) {
	const words = `data: {"choices":[{"text":"one "}]}` + "\n\n" + `data: {"choices":[{"text":"two"}]}` + "\n\n"
	usage := func(n int) string {
		return fmt.Sprintf("data: {\"choices\":[],\"usage\":{\"completion_tokens\":%d}}\n\n", n)
	}
	for name, x := range map[string]struct{ said, want string }{
		"whole":        {words + usage(stockTokens) + "data: [DONE]\n\n", "one two"},
		"cut":          {words + usage(stockTokens), ""},
		"too short":    {words + usage(stockTokens-1) + "data: [DONE]\n\n", ""},
		"error":        {words + `data: {"error":{"message":"gone"}}` + "\n\n" + usage(stockTokens) + "data: [DONE]\n\n", ""},
		"not an event": {"data: {\n\n" + usage(stockTokens) + "data: [DONE]\n\n", ""},
	} {
		t.Run(name, func(t *testing.T) {
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, x.said) }))
			defer server.Close()
			got, err := (&StockPair{}).Through(t.Context(), strings.TrimPrefix(server.URL, "http://"), "say it", nil)
			if x.want == "" {
				if !errors.Is(err, load.ErrVoid) {
					t.Errorf("%+v, %v; want that it is void", got, err)
				}
			} else if err != nil || got.Text != x.want || got.First.IsZero() {
				t.Errorf("%+v, %v; want %q", got, err, x.want)
			}
		})
	}
}
