package main

import "testing"

func TestBenchCommandNamesNoFolders(t *testing.T) {
	got := benchCommand([]string{"-pairs", "6", "-trace", "/home/me/traces/one.jsonl", "-peers", "../peers", "-o", "docs/measurements", "replay"})
	if want := "pdrouter bench -pairs 6 -trace one.jsonl -peers peers -o docs/measurements replay"; got != want {
		t.Errorf("got %q; want %q", got, want)
	}
}
