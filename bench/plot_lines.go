package bench

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"
)

// series is one line of a plot: a contender's figures by the rows' X.
type series struct {
	name   string
	points []point
}

type point struct {
	x float64
	Spread
}

// series are the plot's lines in the order in which the rows name them, each from left to right.
func (p Plot) series() []series {
	var all []series
	several := slices.ContainsFunc(p.rows, func(r Row) bool { return r.Line != p.rows[0].Line })
	for _, row := range p.rows {
		for _, f := range row.all() {
			if !f.drawn() {
				continue
			}
			name := f.Of
			if several {
				name = strings.TrimSpace(row.Line + " " + f.Of)
			}
			i := slices.IndexFunc(all, func(s series) bool { return s.name == name })
			if i < 0 {
				i = len(all)
				all = append(all, series{name: name})
			}
			all[i].points = append(all[i].points, point{row.X, f.Spread})
		}
	}
	for _, s := range all {
		slices.SortStableFunc(s.points, func(a, b point) int { return cmp.Compare(a.x, b.x) })
	}
	return all
}

// dashes tell lines of the same colour apart, and all of them where there is no colour.
var dashes = [...]string{"", "7 4", "2 3", "9 3 2 3"}

// lines draws each contender as a line over the rows' X.
func (p Plot) lines() []byte {
	const height = 420.0
	all := p.series()
	names := 0.0
	var steps []float64
	for _, s := range all {
		names = max(names, wide(s.name))
		for _, at := range s.points {
			steps = append(steps, at.x)
		}
	}
	names = min(names, 300)
	slices.Sort(steps)
	steps = slices.Compact(steps)
	y := axisOf(p.figures(), 50)
	if strings.HasPrefix(p.unit, "%") { // a part of a whole: what is nearly nothing matters little
		y = axisOf(p.figures(), math.Inf(1))
	}
	x := axis{from: steps[0], to: steps[len(steps)-1], ticks: steps}
	if x.log = x.from > 0 && x.to >= 8*x.from; len(steps) == 1 {
		x.from, x.to = x.from-1, x.to+1
	}
	tall := 0.0
	for _, t := range y.ticks {
		tall = max(tall, wide(tick(t)))
	}
	x.low, x.end = plotMargin+26+tall, plotWidth-plotMargin-names-50
	y.low, y.end = height, plotTop+4
	var c canvas
	p.heading(&c, "medians of the rounds, with the smallest and the largest", y.log)
	for _, t := range y.ticks {
		c.line(x.low-4, y.at(t), x.end+8, y.at(t), "grid")
		c.text(x.low-9, y.at(t)+4, "soft", "end", tick(t))
	}
	x.low += 10
	for _, t := range x.ticks {
		c.line(x.at(t), height, x.at(t), height+5, "axis")
	}
	c.line(x.low-14, height, x.end+8, height, "axis")
	p.ticks(&c, x, height+20)
	c.text((x.low+x.end)/2, height+42, "soft", "middle", p.axis)
	c.upright(plotMargin+6, (y.low+y.end)/2, "soft", p.unit)
	for i, s := range all {
		p.draw(&c, x, y, i, s)
	}
	bottom := p.legend(&c, x.end+22, y, all)
	return c.svg(p.Title, plotWidth, max(height+56, bottom))
}

// draw draws one line.
func (p Plot) draw(c *canvas, x, y axis, i int, s series) {
	var path strings.Builder
	for k, at := range s.points {
		word := "L"
		if k == 0 {
			word = "M"
		}
		fmt.Fprintf(&path, "%s%s %s", word, px(x.at(at.x)), px(y.at(at.Median)))
	}
	fmt.Fprintf(&c.marks, `<path d="%s" class="line s%d" stroke-dasharray="%s"/>`+"\n", path.String(), i%lineColours, dash(i))
	for _, at := range s.points {
		if at.Min != at.Max {
			c.line(x.at(at.x), y.at(at.Min), x.at(at.x), y.at(at.Max), fmt.Sprintf("range s%d", i%lineColours))
		}
		mark(c, x.at(at.x), y.at(at.Median), i)
	}
}

func dash(i int) string {
	if d := dashes[(i+i/lineColours)%len(dashes)]; d != "" {
		return d
	}
	return "none"
}

// mark draws a point of a line, in a shape of the line's.
func mark(c *canvas, x, y float64, i int) {
	shapes := [...]string{
		"M%[1]s %[2]sm-4 0a4 4 0 1 0 8 0a4 4 0 1 0 -8 0z", // a circle
		"M%[1]s %[2]sm-3.6 -3.6h7.2v7.2h-7.2z",
		"M%[1]s %[2]sm0 -4.8l4.6 8.4h-9.2z",
		"M%[1]s %[2]sm0 -5l5 5l-5 5l-5 -5z",
	}
	fmt.Fprintf(&c.marks, `<path d="`+shapes[i%len(shapes)]+`" class="mark s%[3]d"/>`+"\n", px(x), px(y), i%lineColours)
}

// legend names the lines in the order of their ends, each as near to its end as the others let it, and returns where it ends.
func (p Plot) legend(c *canvas, left float64, y axis, all []series) float64 {
	const apart = 19.0
	places := make([]float64, len(all))
	byEnd := make([]int, len(all))
	for i, s := range all {
		places[i], byEnd[i] = y.at(s.points[len(s.points)-1].Median), i
	}
	slices.SortStableFunc(byEnd, func(a, b int) int { return cmp.Compare(places[a], places[b]) })
	free := plotTop + 4
	for k, i := range byEnd {
		rest := apart * float64(len(byEnd)-1-k)
		at := max(free, min(places[i], y.low-rest))
		free = at + apart
		fmt.Fprintf(&c.marks, `<path d="M%s %sh24" class="line s%d" stroke-dasharray="%s"/>`+"\n", px(left), px(at), i%lineColours, dash(i))
		mark(c, left+12, at, i)
		class := ""
		if strings.HasSuffix(all[i].name, us) {
			class = "row"
		}
		c.text(left+30, at+4, class, "start", fit(all[i].name, plotWidth-plotMargin-left-30+14))
	}
	return free + plotMargin
}
