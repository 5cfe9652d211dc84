package bench

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"
	"unicode"
)

// Plot is a drawing of those rows of a report that say the same in the same unit: bars, or lines where the rows have an X.
// The report holds their figures; a plot is drawn from them whenever it is asked for.
type Plot struct {
	Name  string // of its file, behind the suite's
	Title string
	unit  string
	axis  string // what the rows' X is
	rows  []Row
}

// plots are a report's, in the order of its rows. Rows with nothing to compare have none.
func (r *Report) plots() []Plot {
	var plots []Plot
	for _, row := range r.Rows {
		lines := row.X != 0
		i := slices.IndexFunc(plots, func(p Plot) bool {
			return p.rows[0].What == row.What && p.unit == row.Unit && (p.rows[0].X != 0) == lines
		})
		if i < 0 {
			i = len(plots)
			plots = append(plots, Plot{unit: row.Unit, Title: strings.TrimSuffix(r.Suite+": "+row.What, ": ") + ", " + row.Unit})
			if lines {
				plots[i].axis = cmp.Or(r.Axis, "x")
			}
			plots[i].Name = slug(row.What + " " + row.Unit)
		}
		plots[i].rows = append(plots[i].rows, row)
	}
	plots = slices.DeleteFunc(plots, func(p Plot) bool { return len(p.figures()) < 2 })
	for i := range plots {
		for n := 2; slices.ContainsFunc(plots[:i], func(p Plot) bool { return p.Name == plots[i].Name }); n++ {
			plots[i].Name = fmt.Sprintf("%s-%d", strings.TrimSuffix(plots[i].Name, fmt.Sprintf("-%d", n-1)), n)
		}
	}
	return plots
}

// slug is a text as a part of a file's name.
func slug(s string) string {
	parts := strings.FieldsFunc(strings.ToLower(strings.NewReplacer("µ", "u", "%", " percent ").Replace(s)), func(r rune) bool {
		return r > unicode.MaxASCII || !unicode.IsLetter(r) && !unicode.IsDigit(r)
	})
	return cmp.Or(strings.Join(parts, "-"), "figures")
}

// figures are all that the plot's rows have.
func (p Plot) figures() []Spread {
	var all []Spread
	for _, row := range p.rows {
		for _, f := range row.all() {
			if f.drawn() {
				all = append(all, f.Spread)
			}
		}
	}
	return all
}

// all are the figures of a row, pdrouter's first.
func (r *Row) all() []Figure { return append([]Figure{r.Ours}, r.Beside...) }

// drawn reports whether there is anything to draw.
func (f Figure) drawn() bool {
	return f.Cannot == "" && !math.IsNaN(f.Median) && !math.IsInf(f.Min, 0) && !math.IsInf(f.Max, 0)
}

// better says which figures are, if a goal tells.
func (p Plot) better() string {
	for _, row := range p.rows {
		switch {
		case len(row.Goals) == 0:
		case strings.HasPrefix(row.Goals[0].Goal, "≥"):
			return "more is better"
		default:
			return "less is better"
		}
	}
	return ""
}

// SVG draws it: the same rows give the same bytes.
func (p Plot) SVG() []byte {
	if p.axis != "" {
		return p.lines()
	}
	return p.bars()
}

// The measures of a drawing, in pixels.
const (
	plotWidth  = 880.0
	plotMargin = 20.0
	plotTop    = 66.0 // behind the title
)

// heading draws the title and what the marks are.
func (p Plot) heading(c *canvas, marks string, log bool) {
	c.text(plotMargin, 28, "title", "start", p.Title)
	under := marks
	if log {
		under += "; logarithmic"
	}
	if better := p.better(); better != "" {
		under += "; " + better
	}
	c.text(plotMargin, 48, "soft", "start", under)
}

// bars draws each row as a group of bars. On a logarithmic axis, where a bar's length says nothing, they are points.
func (p Plot) bars() []byte {
	const line, between = 22.0, 34.0
	names, values := 0.0, 0.0
	for _, row := range p.rows {
		for _, f := range row.all() {
			names = max(names, wide(f.Of))
			if f.drawn() {
				values = max(values, wide(f.String()))
			}
		}
	}
	names, values = min(names, 200), min(values, 260)
	var c canvas
	x := axisOf(p.figures(), 20)
	x.low, x.end = plotMargin+names+12, plotWidth-plotMargin-values-16
	p.heading(&c, "bars are medians of the rounds, whiskers the smallest and the largest", x.log)
	if x.log {
		c = canvas{}
		p.heading(&c, "points are medians of the rounds, whiskers the smallest and the largest", x.log)
	}
	height := plotTop
	for _, row := range p.rows {
		height += between + line*float64(1+len(row.Beside))
	}
	for _, t := range x.ticks {
		c.line(x.at(t), plotTop, x.at(t), height+4, "grid")
	}
	y := plotTop
	for _, row := range p.rows {
		name := row.Name
		if row.Where != "" {
			name += " (" + row.Where + ")"
		}
		c.rect(plotMargin, y+6, plotWidth-2*plotMargin, between-12, "stripe")
		c.text(plotMargin+4, y+between/2+4, "row", "start", fit(name, plotWidth-2*plotMargin-8))
		y += between
		for i, f := range row.all() {
			class := "peer"
			if i == 0 {
				class = "ours"
			}
			p.bar(&c, x, y, line, names, class, f)
			y += line
		}
	}
	c.line(x.low, height+4, x.end, height+4, "axis")
	p.ticks(&c, x, height+20)
	c.text((x.low+x.end)/2, height+40, "soft", "middle", p.unit)
	return c.svg(p.Title, plotWidth, height+54)
}

// bar draws one figure.
func (p Plot) bar(c *canvas, x axis, y, line, names float64, class string, f Figure) {
	middle := y + line/2
	c.text(plotMargin+names, middle+4, "", "end", fit(f.Of, names))
	if !f.drawn() {
		c.text(x.low+6, middle+4, "soft", "start", fit(cmp.Or(f.Cannot, "no figure"), plotWidth-plotMargin-x.low-6))
		return
	}
	if x.log {
		c.dot(x.at(f.Median), middle, class)
	} else {
		from, to := x.at(0), x.at(f.Median)
		c.rect(min(from, to), middle-6, math.Abs(to-from), 12, class)
	}
	c.line(x.at(f.Min), middle, x.at(f.Max), middle, "whisker")
	c.line(x.at(f.Min), middle-4, x.at(f.Min), middle+4, "whisker")
	c.line(x.at(f.Max), middle-4, x.at(f.Max), middle+4, "whisker")
	c.text(plotWidth-plotMargin, middle+4, "", "end", f.String())
}

// ticks writes the figures of an axis from left to right, as many as have room.
func (p Plot) ticks(c *canvas, x axis, y float64) {
	free := math.Inf(-1)
	for _, t := range x.ticks {
		text := tick(t)
		if at := x.at(t); at-wide(text)/2 >= free {
			c.text(at, y, "soft", "middle", text)
			free = at + wide(text)/2 + glyph
		}
	}
}
