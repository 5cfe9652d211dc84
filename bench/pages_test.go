package bench

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

var update = flag.Bool("update", false, "write docs/measurements/README.md's table anew")

const pages = "../docs/measurements"

// TestPages holds docs/measurements/README.md's table against the reports: which suites have a page, of which commit, and what is
// missed.
func TestPages(t *testing.T) {
	var table strings.Builder
	table.WriteString("| suite | of commit | goals reached | missed, with pdrouter's figure over what it is held against |\n| --- | --- | --- | --- |\n")
	for _, s := range Suites() {
		r := Report{Suite: s.Name}
		b, err := os.ReadFile(filepath.Join(pages, r.file()+".json"))
		if errors.Is(err, os.ErrNotExist) {
			fmt.Fprintf(&table, "| %s | no page yet | | |\n", s.Name)
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		if json.Unmarshal(b, &r) != nil {
			fmt.Fprintf(&table, "| [%s](%s.md) | of an older form | | |\n", s.Name, r.file())
			continue
		}
		commit := r.Versions.Pdrouter
		if !strings.ContainsAny(commit, "0123456789") {
			commit = "older than reports that name one"
		}
		fmt.Fprintf(&table, "| [%s](%s.md) | %s | %s |\n", s.Name, r.file(), commit, r.summary())
	}
	readme := filepath.Join(pages, "README.md")
	text, err := os.ReadFile(readme)
	if err != nil {
		t.Fatal(err)
	}
	const from, to = "<!-- goals -->\n", "<!-- end of goals -->\n"
	head, rest, begins := strings.Cut(string(text), from)
	was, tail, ends := strings.Cut(rest, to)
	if !begins || !ends {
		t.Fatalf("%s lacks %q or %q", readme, from, to)
	}
	if *update {
		if err := os.WriteFile(readme, []byte(head+from+table.String()+to+tail), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if d := cmp.Diff(table.String(), was); d != "" {
		t.Errorf("go test ./bench -run TestPages -update writes it anew:\n%s", d)
	}
}

// summary is how many of a report's goals are reached, and which are not.
func (r *Report) summary() string {
	all, met, unheld := 0, 0, 0
	var missed []string
	for _, row := range r.Rows {
		for _, g := range row.Goals {
			switch all++; g.Met {
			case "yes":
				met++
			case "no":
				missed = append(missed, row.missed(g))
			default:
				unheld++
			}
		}
	}
	switch {
	case all == 0:
		return "none is set | "
	case unheld > 0:
		missed = append(missed, fmt.Sprintf("%d have nothing to be held against", unheld))
	}
	if more := len(missed) - mostMissed; more > 0 {
		missed = append(missed[:mostMissed], fmt.Sprintf("%d more", more))
	}
	return fmt.Sprintf("%d of %d | %s", met, all, strings.Join(missed, "; "))
}

// mostMissed is how many the table names of one suite.
const mostMissed = 8

// missed is a goal that the row has not reached.
func (r Row) missed(g Reached) string {
	name := strings.TrimSpace(r.Name + " " + r.What)
	for _, f := range r.Beside {
		if f.Of == g.Beside && f.Ratio != nil {
			return fmt.Sprintf("%s %.3g × %s", name, f.Ratio.Median, f.Of)
		}
	}
	return fmt.Sprintf("%s %.3g %s", name, r.Ours.Median, r.Unit)
}
