package bench

import (
	"bytes"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// plotted is a report with bars, points on a logarithmic axis and lines, of figures that a seed gives.
func plotted(seed uint64) *Report {
	r := rand.New(rand.NewPCG(seed, 0))
	figure := func(of string, about float64) Figure {
		return Figure{Of: of, Rounds: []float64{about * (1 - r.Float64()/4), about, about * (1 + r.Float64()/2)}}
	}
	rep := &Report{Suite: "replay/mooncake", Axis: "speed, times the trace's"}
	add := func(row Row) {
		row.sum(Goal{Beside: "floor", Times: 1.5})
		rep.Rows = append(rep.Rows, row)
	}
	for i := range 3 {
		add(Row{Name: fmt.Sprintf("row %d <&> of a rather long name that goes on and on", i), What: "CPU a request", Where: aloneCPU, Unit: "µs",
			Ours: figure(us, 60+100*r.Float64()), Beside: []Figure{figure("floor", 40), figure("a router with a name that is far too long for its column", 300*r.Float64()), {Of: "absent", Cannot: "not installed: " + strings.Repeat("word ", 30)}}})
		add(Row{Name: fmt.Sprint("wide ", i), Unit: "ns", Ours: figure(us, 10*r.Float64()), Beside: []Figure{figure("floor", 123456*r.Float64())}})
		add(Row{Name: fmt.Sprint("less ", i), Unit: "ms", Ours: figure(us, -3*r.Float64()), Beside: []Figure{figure("floor", 2)}})
	}
	for _, line := range []string{"1P3D", "2P2D", "3P1D"} {
		for _, x := range []float64{1, 2, 4, 8, 8.5, 32} {
			add(Row{Name: line, What: "goodput", Line: line, X: x, Unit: "1/s", Ours: figure(us, 3*x), Beside: []Figure{figure("floor", 3*x*r.Float64()), figure("round robin", 2*x)}})
		}
	}
	return rep
}

// drawnMark is an element of a drawing.
type drawnMark struct {
	XMLName   xml.Name
	X         float64 `xml:"x,attr"`
	Y         float64 `xml:"y,attr"`
	Width     float64 `xml:"width,attr"`
	Height    float64 `xml:"height,attr"`
	Class     string  `xml:"class,attr"`
	Anchor    string  `xml:"text-anchor,attr"`
	Transform string  `xml:"transform,attr"`
	Text      string  `xml:",chardata"`
}

// marks reads a drawing, which must be XML, and returns its size.
func marks(t *testing.T, svg []byte) (all []drawnMark, width, height float64) {
	t.Helper()
	d := xml.NewDecoder(bytes.NewReader(svg))
	for {
		token, err := d.Token()
		if errors.Is(err, io.EOF) {
			return all, width, height
		}
		if err != nil {
			t.Fatal(err)
		}
		start, ok := token.(xml.StartElement)
		if !ok {
			continue
		}
		if start.Name.Local == "svg" {
			for _, a := range start.Attr {
				switch a.Name.Local {
				case "width":
					width, _ = strconv.ParseFloat(a.Value, 64)
				case "height":
					height, _ = strconv.ParseFloat(a.Value, 64)
				}
			}
			continue
		}
		var m drawnMark
		if err := d.DecodeElement(&m, &start); err != nil {
			t.Fatal(err)
		}
		all = append(all, m)
	}
}

// TestPlotsHaveNoOverlap: whatever the figures and names are, no text lies on another or outside the drawing.
func TestPlotsHaveNoOverlap(t *testing.T) {
	for seed := range uint64(20) {
		for _, p := range plotted(seed).plots() {
			all, width, height := marks(t, p.SVG())
			var texts [][4]float64
			for _, m := range all {
				if m.XMLName.Local != "text" || m.Transform != "" {
					continue
				}
				w := wide(m.Text) * 0.98 // the estimate is of the widest font, and rounded
				left := m.X
				switch m.Anchor {
				case "end":
					left -= w
				case "middle":
					left -= w / 2
				}
				if left < 0 || left+w > width || m.Y < 10 || m.Y > height {
					t.Errorf("seed %d, %s: %q leaves the drawing: from %.0f to %.0f of %.0f, at %.0f of %.0f", seed, p.Name, m.Text, left, left+w, width, m.Y, height)
				}
				box := [4]float64{left, m.Y - 10, left + w, m.Y + 2}
				for _, other := range texts {
					if box[0] < other[2] && other[0] < box[2] && box[1] < other[3] && other[1] < box[3] {
						t.Errorf("seed %d, %s: %q lies on another text", seed, p.Name, m.Text)
					}
				}
				texts = append(texts, box)
			}
		}
	}
}

// TestPlots: one for each figure and unit, lines apart from bars, the same bytes for the same rows, nothing where there is
// nothing to compare.
func TestPlots(t *testing.T) {
	r := plotted(1)
	r.Rows = append(r.Rows, Row{Name: "alone", Unit: "s", Ours: Figure{Of: us, Spread: Spread{1, 1, 1}}}, Row{Name: "x", What: "goodput", Unit: "1:s", Ours: figureOf(1), Beside: []Figure{figureOf(2)}})
	var names []string
	for _, p := range r.plots() {
		names = append(names, p.Name+" "+p.Title)
		if !bytes.Equal(p.SVG(), p.SVG()) {
			t.Errorf("%s is another one the second time", p.Name)
		}
	}
	if d := cmp.Diff([]string{"cpu-a-request-us replay/mooncake: CPU a request, µs", "ns replay/mooncake, ns", "ms replay/mooncake, ms", "goodput-1-s replay/mooncake: goodput, 1/s", "goodput-1-s-2 replay/mooncake: goodput, 1:s"}, names); d != "" {
		t.Error(d)
	}
}

func figureOf(v float64) Figure { return Figure{Of: fmt.Sprint(v), Spread: Spread{v, v, v}} }

// TestBars: a bar is as long as its figure says, and what has no figure says why.
func TestBars(t *testing.T) {
	r := &Report{Suite: "x", Rows: []Row{{Unit: "µs", Ours: figureOf(30), Beside: []Figure{figureOf(60), {Of: "absent", Cannot: "not installed"}}}}}
	all, _, _ := marks(t, r.plots()[0].SVG())
	lengths := map[string]float64{}
	said := false
	for _, m := range all {
		lengths[m.Class] = m.Width
		said = said || m.Text == "not installed"
	}
	if ratio := lengths["peer"] / lengths["ours"]; ratio < 1.99 || ratio > 2.01 || !said {
		t.Errorf("bars are %v long; want one twice the other (said why: %t)", lengths, said)
	}
}

// TestSeries: a line for each contender, and for each Line of the rows where there are several, from left to right.
func TestSeries(t *testing.T) {
	row := func(line string, x, ours float64) Row {
		return Row{Line: line, X: x, Ours: Figure{Of: us, Spread: Spread{ours, ours, ours}}, Beside: []Figure{{Of: "peer", Cannot: "no"}}}
	}
	got := Plot{rows: []Row{row("a", 2, 20), row("b", 2, 21), row("a", 1, 10)}}.series()
	want := []series{{"a pdrouter", []point{{1, Spread{10, 10, 10}}, {2, Spread{20, 20, 20}}}}, {"b pdrouter", []point{{2, Spread{21, 21, 21}}}}}
	if d := cmp.Diff(want, got, cmp.AllowUnexported(series{}, point{})); d != "" {
		t.Error(d)
	}
}

func TestAxes(t *testing.T) {
	for name, c := range map[string]struct {
		got  axis
		want []float64
		log  bool
	}{
		"from 0":        {axisOf([]Spread{{3, 4, 5}, {20, 30, 44}}, 20), []float64{0, 10, 20, 30, 40, 50}, false},
		"below 0":       {axisOf([]Spread{{-3, 1, 5}}, 20), []float64{-4, -2, 0, 2, 4, 6}, false},
		"nothing":       {axisOf([]Spread{{}}, 20), []float64{0, .2, .4, .6000000000000001, .8, 1}, false},
		"log":           {axisOf([]Spread{{2.1, 3, 5}, {90, 100, 130}}, 20), []float64{2, 5, 10, 20, 50, 100, 200}, true},
		"decades":       {axisOf([]Spread{{1, 3, 5}, {90, 1e6, 1e6}}, 20), []float64{1, 10, 100, 1000, 10000, 100000, 1e6}, true},
		"0 has no log":  {axisOf([]Spread{{0, 3, 5}, {90, 100, 100}}, 20), []float64{0, 20, 40, 60, 80, 100}, false},
		"near, so none": {axisOf([]Spread{{1, 3, 5}, {20, 50, 60}}, 20), []float64{0, 10, 20, 30, 40, 50, 60}, false},
	} {
		t.Run(name, func(t *testing.T) {
			if d := cmp.Diff(c.want, c.got.ticks); d != "" || c.got.log != c.log {
				t.Errorf("%s log: %t", d, c.got.log)
			}
			if c.got.low, c.got.end = 100, 300; c.got.at(c.got.from) != 100 || c.got.at(c.got.to) != 300 {
				t.Errorf("the ends are at %v and %v", c.got.at(c.got.from), c.got.at(c.got.to))
			}
		})
	}
	for v, want := range map[float64]string{0: "0", 1234567: "1,234,567", -1500: "-1,500", .25: "0.25", 1e8: "1e+08", .1 + .2: "0.3", 999: "999"} {
		if got := tick(v); got != want {
			t.Errorf("%v: got %q; want %q", v, got, want)
		}
	}
}

// TestReportHasItsPlots: files, links to them, and no second copy of the figures in the JSON.
func TestReportHasItsPlots(t *testing.T) {
	r, dir := plotted(2), t.TempDir()
	if err := r.Write(dir); err != nil {
		t.Fatal(err)
	}
	page := r.Markdown()
	for _, p := range r.plots() {
		file := "replay-mooncake-" + p.Name + ".svg"
		if b, err := os.ReadFile(filepath.Join(dir, file)); err != nil || !bytes.Equal(b, p.SVG()) {
			t.Errorf("%s: %v", file, err)
		}
		if link := "![" + p.Title + "](" + file + ")"; !strings.Contains(page, link) {
			t.Errorf("the page lacks %s", link)
		}
	}
	b, err := os.ReadFile(filepath.Join(dir, "replay-mooncake.json"))
	if err != nil {
		t.Fatal(err)
	}
	if number := strconv.FormatFloat(r.Rows[0].Ours.Rounds[0], 'f', -1, 64); strings.Count(string(b), number) != 2 { // the round, and the smallest
		t.Errorf("%s stands %d times in the JSON", number, strings.Count(string(b), number))
	}
}
