package bench

import (
	"strings"
	"testing"
)

func TestChoose(t *testing.T) {
	for asked, want := range map[string]string{
		"":                      "overhead/cpu-1k", // and all others
		"overhead":              "overhead/cpu-1k overhead/cpu-16k overhead/cpu-220k overhead/latency overhead/syscalls",
		"idle overhead/cpu-16k": "overhead/cpu-16k idle",
	} {
		got, err := Choose(strings.Fields(asked))
		if err != nil {
			t.Fatal(err)
		}
		var names []string
		for _, s := range got {
			names = append(names, s.Name)
		}
		if joined := strings.Join(names, " "); joined != want && (asked != "" || !strings.HasPrefix(joined, want+" ")) {
			t.Errorf("%q: got %q; want %q", asked, joined, want)
		}
	}
	if _, err := Choose([]string{"idle", "over"}); err == nil || !strings.Contains(err.Error(), `"over" is no suite`) {
		t.Errorf("got %v; want a refusal", err)
	}
}
