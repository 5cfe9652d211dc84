// Command faults prints a table of the faults that tests provoke: row, test, what was answered and counted, result. It
// reads what go test -json prints of the tests named TestFaultNN…; make faults runs both. Its exit status is 1 if one
// failed, or if there was none.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"regexp"
	"slices"
	"strings"
)

func main() {
	rows, err := read(os.Stdin)
	if err != nil {
		fmt.Fprintln(os.Stderr, "faults:", err)
		os.Exit(1)
	}
	failed := 0
	fmt.Println("| row | test | answers and counts | result |\n| --- | --- | --- | --- |")
	for _, r := range rows {
		fmt.Printf("| %s | %s | %s | %s |\n", r.number, r.name(), strings.Join(r.counted, "; "), r.result)
		if r.result == "fail" {
			failed++
		}
	}
	fmt.Printf("\n%d tests of faults, %d failed\n", len(rows), failed)
	if failed > 0 || len(rows) == 0 {
		os.Exit(1)
	}
}

// event is a line of go test -json.
type event struct {
	Action, Package, Test, Output string
}

// row is one test that has no subtests, or one that says more than these.
type row struct {
	number    string // of the table of faults, as the test's name has it: "47", "01-08"
	pkg, test string
	counted   []string
	result    string // pass, fail or skip
	hasParts  bool   // has subtests, which are rows of their own
	tellsOwn  bool   // said itself what was counted
}

// name is the test's without what all names have.
func (r *row) name() string {
	return strings.TrimPrefix(r.pkg, "pdrouter/") + " " + strings.ReplaceAll(r.test, "_", " ")
}

var numbered = regexp.MustCompile(`^TestFault(\d\d)(?:(?:to|and)(\d\d))?`)

// own is the number that a subtest's name begins with.
var own = regexp.MustCompile(`/(\d\d)_`)

// read collects the tests of faults, in the order of their numbers.
func read(from io.Reader) ([]*row, error) {
	all := map[string]*row{}
	lines := bufio.NewScanner(from)
	lines.Buffer(nil, 16<<20)
	for lines.Scan() {
		var e event
		if err := json.Unmarshal(lines.Bytes(), &e); err != nil {
			fmt.Fprintln(os.Stderr, lines.Text()) // of the compiler
			continue
		}
		m := numbered.FindStringSubmatch(e.Test)
		if m == nil {
			continue
		}
		r := all[e.Package+e.Test]
		if r == nil {
			r = &row{number: number(m, e.Test), pkg: e.Package, test: e.Test}
			all[e.Package+e.Test] = r
			if i := strings.LastIndexByte(e.Test, '/'); i > 0 && all[e.Package+e.Test[:i]] != nil {
				all[e.Package+e.Test[:i]].hasParts = true
			}
		}
		switch e.Action {
		case "pass", "fail", "skip":
			r.result = e.Action
		case "output":
			if _, counted, ok := strings.Cut(strings.TrimSpace(e.Output), "counted: "); ok {
				r.counted, r.tellsOwn = append(r.counted, counted), true
			}
		}
	}
	if err := lines.Err(); err != nil {
		return nil, err
	}
	var rows []*row
	for _, r := range all {
		if !r.hasParts || r.tellsOwn {
			rows = append(rows, r)
		}
	}
	slices.SortFunc(rows, func(a, b *row) int {
		return strings.Compare(a.number+" "+a.pkg+" "+a.test, b.number+" "+b.pkg+" "+b.test)
	})
	return rows, nil
}

// number returns the row's number, or the first and the last of several.
func number(m []string, test string) string {
	switch part := own.FindStringSubmatch(test); {
	case part != nil:
		return part[1]
	case m[2] != "":
		return m[1] + "–" + m[2]
	}
	return m[1]
}
