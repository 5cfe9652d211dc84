package main

import (
	"strings"
	"testing"
	"time"
)

// TestEnginesListSteersNoTerminal has whoever changed an engine be called what moves a cursor and begins lines.
func TestEnginesListSteersNoTerminal(t *testing.T) {
	by, at := "x\x1b[2J\ndecode-3\tup", time.Now()
	var out strings.Builder
	if err := printEngines(&out, adminList{[]adminEngine{{Name: "a", By: by, At: &at}}, []adminLapsed{{Name: "b", By: by, At: at}}}); err != nil {
		t.Fatal(err)
	}
	if text := out.String(); strings.Contains(text, "\x1b") || strings.Count(text, "\n") != 3 || strings.Count(text, `\n`) != 2 {
		t.Errorf("printed %q", text)
	}
}
