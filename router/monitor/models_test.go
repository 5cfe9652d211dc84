package monitor

import (
	"fmt"
	"testing"
)

// FuzzReported reads lists of models that engines might send.
func FuzzReported(f *testing.F) {
	f.Add(`{"data":[{"id":"tiny"},{"id":"a","parent":"tiny"}]}`)
	f.Add(`{"data":[{"id":"a","parent":"a"},{"id":"","parent":"tiny"}]}`)
	f.Fuzz(func(t *testing.T, list string) {
		r, err := parseReported([]byte(list), "tiny")
		if err != nil {
			return
		}
		for name, a := range r.Adapters {
			if name == "" || name == "tiny" || a.Parent != "tiny" || len(name) > maxModelName {
				t.Errorf("%s: %s", list, fmt.Sprint(r.Adapters))
			}
		}
	})
}
