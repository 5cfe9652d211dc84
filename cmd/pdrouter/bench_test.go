package main

import "testing"

func TestBenchCommandNamesNoFolders(t *testing.T) {
	f := benchCommand().Flags()
	if err := f.Parse([]string{"--rounds", "6", "--trace", "/home/me/traces/one.jsonl", "--peers", "../peers", "--only", "pull c=32", "-o", "docs/measurements", "replay"}); err != nil {
		t.Fatal(err)
	}
	got := commandLine(f, f.Args())
	if want := `pdrouter bench --only "pull c=32" --out docs/measurements --peers peers --rounds 6 --trace one.jsonl replay`; got != want {
		t.Errorf("got %q; want %q", got, want)
	}
}
