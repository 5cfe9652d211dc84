package report

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// Report is one suite's result, with all one needs to repeat it.
type Report struct {
	Suite    string   `json:"suite"`
	Date     string   `json:"date,omitempty"` // on which the run began, in UTC: 2026-11-22
	Command  string   `json:"command"`
	Settings string   `json:"settings"`
	Versions Versions `json:"versions"`
	Machine  Machine  `json:"machine"`
	Found    []string `json:"found,omitempty"` // Markdown: what the rows come to, for whoever reads no more
	Rows     []Row    `json:"rows"`
	Notes    []string `json:"notes,omitempty"` // Markdown: what the figures do not say by themselves
	Axis     string   `json:"axis,omitempty"`  // what the rows' X is
}

// Row is one figure of pdrouter, and those of what stood beside it in the same rounds.
type Row struct {
	Name     string    `json:"name"`            // the load: "pull c=32"
	What     string    `json:"what,omitempty"`  // the figure: "CPU a request"; "" where the suite has only one
	Where    string    `json:"where,omitempty"` // which CPUs or which path
	X        float64   `json:"x,omitempty"`     // the place of its figures on the report's Axis; 0: none
	Line     string    `json:"line,omitempty"`  // which of several lines of each system it is a point of
	Unit     string    `json:"unit"`
	Ours     Figure    `json:"ours"`
	Beside   []Figure  `json:"beside"`
	Goals    []Reached `json:"goals,omitempty"`
	Done     int       `json:"done,omitempty"`     // requests, or whatever the rounds have counted, of all together
	Repeated int       `json:"repeated,omitempty"` // rounds that were measured again because the machine was busy
}

// Figure is what one system reached in the rounds of a row.
type Figure struct {
	Of     string    `json:"of"`
	Spread           // of Rounds
	Rounds []float64 `json:"rounds,omitempty"`
	Ratio  *Spread   `json:"ratio,omitempty"`  // pdrouter's over this one, round by round; nil if this one is nothing in a round
	Cannot string    `json:"cannot,omitempty"` // why there is no figure
	Peer   bool      `json:"-"`
}

// Goal is what a row is to reach.
type Goal struct {
	Beside  string  // what it is held against, by its name; "" is Plus alone; bestPeer is whichever peer is best
	Times   float64 // so many times that
	Plus    float64 // in the row's unit
	AtLeast bool    // else at most
}

// Reached is a goal and whether the row has reached it. It is neither yes nor no where what it is held against has no figure.
type Reached struct {
	Goal   string `json:"goal"`
	Met    string `json:"met"`
	Beside string `json:"beside,omitempty"` // the system that it is held against
}

// BestPeer names the best of the peers' figures in a Goal.
const BestPeer = "best peer"

// text is the goal in a table's words.
func (g Goal) text(unit string) string {
	sign := "≤"
	if g.AtLeast {
		sign = "≥"
	}
	switch {
	case g.Beside == "":
		return fmt.Sprintf("%s %g %s", sign, g.Plus, unit)
	case g.Plus == 0:
		return fmt.Sprintf("%s %.3g × %s", sign, g.Times, g.Beside)
	}
	return fmt.Sprintf("%s %.3g × %s + %g %s", sign, g.Times, g.Beside, g.Plus, unit)
}

// met holds the row against the goal, round by round where something stands beside: by the median of the rounds' ratios, or of what
// lies above the goal in each.
func (g Goal) met(r *Row) Reached {
	reached := Reached{Goal: g.text(r.Unit)}
	got, most := r.Ours.Median, g.Plus
	if g.Beside != "" {
		beside := r.BesideOf(g)
		if beside == nil {
			return reached
		}
		reached.Beside = beside.Of
		if beside.Ratio != nil && g.Plus == 0 {
			got, most = beside.Ratio.Median, g.Times
		} else {
			got, most = above(r.Ours.Rounds, beside.Rounds, g.Times), g.Plus
		}
	}
	reached.Met = "no"
	if got == most || (got > most) == g.AtLeast {
		reached.Met = "yes"
	}
	return reached
}

// BesideOf is the figure that a goal is held against, nil if there is none.
func (r *Row) BesideOf(g Goal) *Figure {
	var best *Figure
	for i := range r.Beside {
		f := &r.Beside[i]
		switch {
		case f.Cannot != "":
		case f.Of == g.Beside:
			return f
		case g.Beside == BestPeer && f.Peer && (best == nil || (f.Median > best.Median) == g.AtLeast):
			best = f
		}
	}
	return best
}

// Of is the figure of a system, nil if it is none of the row's.
func (r *Row) Of(name string) *Figure {
	if r.Ours.Of == name {
		return &r.Ours
	}
	if i := slices.IndexFunc(r.Beside, func(f Figure) bool { return f.Of == name }); i >= 0 {
		return &r.Beside[i]
	}
	return nil
}

// Sum fills in what the rounds' figures say. Those of each that stands beside must be as many as pdrouter's.
func (r *Row) Sum(goals ...Goal) {
	r.Ours.Spread = SpreadOf(r.Ours.Rounds)
	for i := range r.Beside {
		f := &r.Beside[i]
		if f.Cannot != "" {
			continue
		}
		f.Spread = SpreadOf(f.Rounds)
		if f.Min > 0 { // a ratio to nothing, or to less, says nothing
			ratio := ratios(f.Rounds, r.Ours.Rounds)
			f.Ratio = &ratio
		}
	}
	for _, g := range goals {
		r.Goals = append(r.Goals, g.met(r))
	}
}

// Us is pdrouter among the systems.
const Us = "pdrouter"

// Write puts the report into dir, as a file that Read returns.
func (r *Report) Write(dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("bench: %w", err)
	}
	b, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return fmt.Errorf("bench: %s: %w", r.Suite, err)
	}
	if err := os.WriteFile(reportFile(dir, r.Suite), append(b, '\n'), 0o644); err != nil {
		return fmt.Errorf("bench: %w", err)
	}
	return nil
}

// Read returns the report of a suite that Write has put into dir. Without one the error is os.ErrNotExist.
func Read(dir, suite string) (*Report, error) {
	b, err := os.ReadFile(reportFile(dir, suite))
	if err != nil {
		return nil, fmt.Errorf("bench: %w", err)
	}
	b = oldBaseline.ReplaceAll(b, []byte(Baseline))
	r := &Report{}
	if err := json.Unmarshal(b, r); err != nil {
		return nil, fmt.Errorf("bench: %s: %w", suite, err)
	}
	return r, nil
}

// Baseline is the baseline proxy among the systems.
const Baseline = "baseline proxy"

// oldBaseline is how reports named it once.
var oldBaseline = regexp.MustCompile(`\bfloor\b`)

// reportFile is the file of a suite's report in dir.
func reportFile(dir, suite string) string {
	return filepath.Join(dir, strings.ReplaceAll(suite, "/", "-")+".json")
}

// has reports whether any row has what f looks for.
func (r *Report) has(f func(Row) bool) bool { return slices.ContainsFunc(r.Rows, f) }
