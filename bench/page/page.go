package main

import (
	"bytes"
	"embed"
	"errors"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"text/template"

	"pdrouter/bench"
	"pdrouter/bench/harness"
	"pdrouter/bench/report"
)

//go:embed page.md
var pageTemplate string

// methods say what is measured and how, in a file for each family of suites.
//
//go:embed methods/*.md
var methods embed.FS

// page is what the template shows.
type page struct {
	Suites   []suite
	Families []family
	Charts   []chart
	Limits   []limited
}

// family is the suites whose names have the same first word.
type family struct {
	Name   string
	Method string // Markdown
	Suites []suite
}

// suite is what bench measures together, and its report.
type suite struct {
	harness.Suite
	Report *report.Report // nil: not measured yet
}

// files are the page and its charts, by their names, from the reports in a folder. The same reports give the same bytes.
func files(data string) (map[string][]byte, error) {
	p := &page{}
	for _, s := range bench.Suites() {
		r, err := report.Read(data, s.Name)
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return nil, err
		}
		p.Suites = append(p.Suites, suite{s, r})
	}
	var err error
	if p.Families, err = p.families(); err != nil {
		return nil, err
	}
	if p.Charts, err = p.charts(); err != nil {
		return nil, err
	}
	if p.Limits, err = p.limits(knownLimits()); err != nil {
		return nil, err
	}
	all := map[string][]byte{}
	for _, c := range p.Charts {
		if all[c.File], err = c.svg(); err != nil {
			return nil, fmt.Errorf("%s: %w", c.File, err)
		}
	}
	t, err := template.New("page.md").Parse(pageTemplate)
	if err != nil {
		return nil, err
	}
	var b bytes.Buffer
	if err := t.Execute(&b, p); err != nil {
		return nil, err
	}
	all["README.md"] = b.Bytes()
	return all, nil
}

// report is that of the suite of this name.
func (p *page) report(name string) (*report.Report, error) {
	for _, s := range p.Suites {
		if s.Name == name && s.Report != nil {
			return s.Report, nil
		}
	}
	return nil, fmt.Errorf("no report of %s", name)
}

// families are those of the suites with a report, in the order of the first of each.
func (p *page) families() ([]family, error) {
	var all []family
	for _, s := range p.Measured() {
		name, _, _ := strings.Cut(s.Name, "/")
		i := slices.IndexFunc(all, func(f family) bool { return f.Name == name })
		if i < 0 {
			method, err := methods.ReadFile("methods/" + name + ".md")
			if err != nil {
				return nil, err
			}
			i, all = len(all), append(all, family{Name: name, Method: strings.TrimSpace(string(method))})
		}
		all[i].Suites = append(all[i].Suites, s)
	}
	return all, nil
}

// Measured are the suites with a report.
func (p *page) Measured() []suite {
	return slices.DeleteFunc(slices.Clone(p.Suites), func(s suite) bool { return s.Report == nil })
}

// Unmeasured are the names of the suites without a report.
func (p *page) Unmeasured() string {
	var names []string
	for _, s := range p.Suites {
		if s.Report == nil {
			names = append(names, "`"+s.Name+"`")
		}
	}
	return strings.Join(names, ", ")
}

// Machines are those of the reports, each once.
func (p *page) Machines() string {
	return p.each(func(r *report.Report) []string {
		m := r.Machine
		return []string{fmt.Sprintf("%d CPUs (%s), %s of memory, %s", m.CPUs, m.Model, m.Memory, m.Kernel)}
	})
}

// Versions are those of everything that the reports name but pdrouter, each once.
func (p *page) Versions() string {
	return p.each(func(r *report.Report) []string {
		return append([]string{r.Versions.Go, "fasthttp " + r.Versions.Fasthttp}, r.Versions.Beside...)
	})
}

// each lists what f finds in the reports, each once.
func (p *page) each(f func(*report.Report) []string) string {
	var all []string
	for _, s := range p.Measured() {
		for _, one := range f(s.Report) {
			if !slices.Contains(all, one) {
				all = append(all, one)
			}
		}
	}
	return strings.Join(all, ", ")
}

// Undated reports whether any report lacks its date.
func (p *page) Undated() bool {
	return slices.ContainsFunc(p.Measured(), func(s suite) bool { return s.Report.Date == "" })
}

// outFlag is the flag of a command that wrote its report, which one who repeats it does not need.
var outFlag = regexp.MustCompile(` (-o|--out)[ =]\S+`)

// Command prints the suite's figures again.
func (s suite) Command() string { return "bin/" + outFlag.ReplaceAllString(s.Report.Command, "") }

// Run is the commit that was measured, and when.
func (s suite) Run() string {
	if s.Report.Date == "" {
		return s.Report.Versions.Pdrouter
	}
	return s.Report.Versions.Pdrouter + ", " + s.Report.Date
}

// Reached is how many of the suite's aims its rows reach.
func (s suite) Reached() string {
	all, met := 0, 0
	for _, row := range s.Report.Rows {
		for _, g := range row.Goals {
			all++
			if g.Met == "yes" {
				met++
			}
		}
	}
	if all == 0 {
		return "no aim is set"
	}
	return fmt.Sprintf("%d of %d", met, all)
}

// Anchor is the name by which GitHub links to the suite's heading.
func (s suite) Anchor() string { return strings.ReplaceAll(s.Name, "/", "") }

// Settings are the rounds of the run.
func (s suite) Settings() string {
	return strings.ToUpper(s.Report.Settings[:1]) + s.Report.Settings[1:]
}

// Notes are what the report says of its rows, in Markdown.
func (s suite) Notes() []string { return slices.Concat(s.Report.Found, s.Report.Notes) }
