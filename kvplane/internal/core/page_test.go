package core

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"pdrouter/kvplane/sched"
	"pdrouter/kvplane/wire"
)

// section returns what the page has under a heading, up to the next heading of the same or a higher level.
func section(t *testing.T, page, heading string) string {
	t.Helper()
	_, rest, ok := strings.Cut(page, "\n"+heading+"\n")
	if !ok {
		t.Fatalf("docs/kvplane.md has no heading %q", heading)
	}
	level := strings.Count(strings.Fields(heading)[0], "#")
	for line := range strings.Lines(rest) {
		if n := len(line) - len(strings.TrimLeft(line, "#")); n > 0 && n <= level {
			before, _, _ := strings.Cut(rest, "\n"+line)
			return before
		}
	}
	return rest
}

// cells returns one column of the first table in a text, without its head.
func cells(text string, column int) []string {
	var out []string
	for line := range strings.Lines(text) {
		if c := strings.Split(line, "|"); len(c) > column+1 && !strings.HasPrefix(line, "| ---") {
			out = append(out, strings.TrimSpace(c[column+1]))
		}
	}
	return out[min(1, len(out)):]
}

// constants returns the constants of a file whose names begin with a prefix.
func constants(t *testing.T, path, prefix string) []string {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, d := range file.Decls {
		g, ok := d.(*ast.GenDecl)
		if !ok || g.Tok != token.CONST {
			continue
		}
		for _, s := range g.Specs {
			for _, id := range s.(*ast.ValueSpec).Names {
				if strings.HasPrefix(id.Name, prefix) {
					out = append(out, id.Name)
				}
			}
		}
	}
	if len(out) == 0 {
		t.Fatalf("%s has no constants %s…", path, prefix)
	}
	return out
}

func named[S interface {
	~uint8
	String() string
}](first, last S) []string {
	var out []string
	for s := first; s <= last; s++ {
		out = append(out, s.String())
	}
	return out
}

// TestPageHasTheStates compares the tables of docs/kvplane.md with the code: states, events, effects, kinds of messages and outcomes.
func TestPageHasTheStates(t *testing.T) {
	raw, err := os.ReadFile("../../../docs/kvplane.md")
	if err != nil {
		t.Fatal(err)
	}
	page := string(raw)

	for heading, states := range map[string][]string{
		"### D: one incoming transfer":                named(incomingQueued, incomingForgotten),
		"### D: one producer of an incoming transfer": named(producerSent, ProducerFinal),
		"### P: one outgoing transfer":                named(OutgoingEarly, OutgoingTombstone),
		"### P: one write request":                    named(requestWaiting, RequestEnded),
	} {
		table := section(t, page, heading)
		var seen []string
		for _, cell := range append(cells(table, 0), cells(table, 2)...) {
			for _, s := range strings.Split(cell, ", ") {
				seen = append(seen, s)
				if !slices.Contains(states, s) && s != "none" && s != "same" && s != "forgotten" {
					t.Errorf("%s: %q is no state; want one of %v", heading, s, states)
				}
			}
		}
		for _, s := range states {
			if !slices.Contains(seen, s) {
				t.Errorf("%s: has no row with state %q", heading, s)
			}
		}
	}

	events, actions := constants(t, "step.go", "Ev"), constants(t, "step.go", "Do")
	states := section(t, page, "## States")
	for _, name := range events {
		if !strings.Contains(states, "`"+name+"`") {
			t.Errorf("the tables have no event %s", name)
		}
	}
	for _, m := range regexp.MustCompile("`((?:Ev|Do)[A-Z][A-Za-z]*)`").FindAllStringSubmatch(page, -1) {
		if !slices.Contains(events, m[1]) && !slices.Contains(actions, m[1]) {
			t.Errorf("the page names %s, which is neither an event nor an effect", m[1])
		}
	}

	messages := section(t, page, "## Messages")
	var kinds []string
	for _, k := range constants(t, "../../wire/message.go", "Kind") {
		kinds = append(kinds, "`"+k+"`")
	}
	if got := cells(messages, 1); !slices.Equal(slices.Sorted(slices.Values(got)), slices.Sorted(slices.Values(kinds))) {
		t.Errorf("the page has messages %v; want %v", got, kinds)
	}
	for s := wire.Waiting; s <= wire.Failed; s++ {
		if !strings.Contains(messages, "`"+s.String()+"`") {
			t.Errorf("the page has no state %s of STATUS", s)
		}
	}

	var outcomes []string
	for o := sched.Nothing + 1; o <= sched.Freed; o++ {
		outcomes = append(outcomes, strings.ToUpper(o.String()[:1])+o.String()[1:])
	}
	for i, cell := range cells(section(t, page, "### All ranks of an engine"), 0) {
		if i >= len(outcomes) || cell != "`"+outcomes[i]+"`" {
			t.Errorf("outcome %d of the page is %s; want %v", i, cell, outcomes)
		}
	}
}
