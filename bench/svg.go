package bench

import (
	"bytes"
	"fmt"
	"html"
	"math"
	"strconv"
)

// canvas is an SVG in the making. Its colours follow what the reader prefers, dark or light, on a ground of its own.
type canvas struct {
	marks bytes.Buffer
}

// lineColours are told apart by people who do not see all colours (Okabe and Ito's), and on both grounds.
const lineColours = 8

const svgStyle = `<style>
text{font-family:system-ui,-apple-system,"Segoe UI",Roboto,"DejaVu Sans",sans-serif;font-size:12px;fill:#1f2328}
.title{font-size:15px;font-weight:600}.row{font-weight:600}.soft{fill:#59636e}
.ground{fill:#ffffff}.stripe{fill:#f6f8fa}.grid{stroke:#d1d9e0;stroke-width:1}.axis{stroke:#59636e;stroke-width:1}
.ours{fill:#0072b2}.peer{fill:#a8b1ba}.whisker{stroke:#1f2328;stroke-width:1.2;fill:none}
.line{fill:none;stroke-width:2}.range{stroke-width:1.2;opacity:.55}
.s0{stroke:#0072b2;color:#0072b2}.s1{stroke:#d55e00;color:#d55e00}.s2{stroke:#009e73;color:#009e73}.s3{stroke:#b3478f;color:#b3478f}
.s4{stroke:#b88600;color:#b88600}.s5{stroke:#4a9fd6;color:#4a9fd6}.s6{stroke:#59636e;color:#59636e}.s7{stroke:#8a5a2b;color:#8a5a2b}
.mark{fill:currentColor;stroke:none}
@media(prefers-color-scheme:dark){text{fill:#f0f6fc}.soft{fill:#9198a1}
.ground{fill:#0d1117}.stripe{fill:#151b23}.grid{stroke:#3d444d}.axis{stroke:#9198a1}
.ours{fill:#4a9fd6}.peer{fill:#656c76}.whisker{stroke:#f0f6fc}
.s0{stroke:#4a9fd6;color:#4a9fd6}.s1{stroke:#ff8a3d;color:#ff8a3d}.s2{stroke:#2bc79a;color:#2bc79a}.s3{stroke:#e08fc4;color:#e08fc4}
.s4{stroke:#e6b422;color:#e6b422}.s5{stroke:#9cd0f5;color:#9cd0f5}.s6{stroke:#9198a1;color:#9198a1}.s7{stroke:#c99a6b;color:#c99a6b}}
</style>
`

// glyph is about how wide a letter of 12 px is, in the widest of the fonts.
const glyph = 7.3

// wide is about how wide a text is.
func wide(s string) float64 { return glyph * float64(len([]rune(s))) }

// fit is s, cut so that it is at most so wide.
func fit(s string, width float64) string {
	if r, n := []rune(s), max(1, int(width/glyph)); len(r) > n {
		return string(r[:n-1]) + "…"
	}
	return s
}

func px(f float64) string { return strconv.FormatFloat(math.Round(f*10)/10, 'f', -1, 64) }

func (c *canvas) text(x, y float64, class, anchor, s string) {
	fmt.Fprintf(&c.marks, `<text x="%s" y="%s" class="%s" text-anchor="%s">%s</text>`+"\n", px(x), px(y), class, anchor, html.EscapeString(s))
}

func (c *canvas) upright(x, y float64, class, s string) {
	fmt.Fprintf(&c.marks, `<text transform="translate(%s %s) rotate(-90)" class="%s" text-anchor="middle">%s</text>`+"\n", px(x), px(y), class, html.EscapeString(s))
}

func (c *canvas) line(x1, y1, x2, y2 float64, class string) {
	fmt.Fprintf(&c.marks, `<line x1="%s" y1="%s" x2="%s" y2="%s" class="%s"/>`+"\n", px(x1), px(y1), px(x2), px(y2), class)
}

func (c *canvas) rect(x, y, width, height float64, class string) {
	fmt.Fprintf(&c.marks, `<rect x="%s" y="%s" width="%s" height="%s" class="%s"/>`+"\n", px(x), px(y), px(max(0, width)), px(height), class)
}

func (c *canvas) dot(x, y float64, class string) {
	fmt.Fprintf(&c.marks, `<circle cx="%s" cy="%s" r="4.5" class="%s"/>`+"\n", px(x), px(y), class)
}

// svg is the whole drawing.
func (c *canvas) svg(title string, width, height float64) []byte {
	var b bytes.Buffer
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %s %s" width="%s" height="%s" role="img">`+"\n<title>%s</title>\n", px(width), px(height), px(width), px(height), html.EscapeString(title))
	b.WriteString(svgStyle)
	fmt.Fprintf(&b, `<rect width="%s" height="%s" class="ground"/>`+"\n", px(width), px(height))
	b.Write(c.marks.Bytes())
	b.WriteString("</svg>\n")
	return b.Bytes()
}

// axis maps figures to pixels.
type axis struct {
	from, to float64 // figures at its ends
	low, end float64 // pixels there
	log      bool
	ticks    []float64
}

// at is where a figure is, in pixels.
func (a axis) at(v float64) float64 {
	from, to := a.from, a.to
	if a.log {
		from, to, v = math.Log(from), math.Log(to), math.Log(v)
	}
	return a.low + (a.end-a.low)*(v-from)/(to-from)
}

// linear is an axis over figures, and 0 is on it.
func linear(least, most float64) axis {
	least, most = min(0, least), max(0, most)
	if least == most {
		most = 1
	}
	step := math.Pow(10, math.Floor(math.Log10((most-least)/5)))
	for _, times := range []float64{1, 2, 5, 10} {
		if (most-least)/(step*times) <= 6 {
			step *= times
			break
		}
	}
	a := axis{from: math.Floor(least/step) * step, to: math.Ceil(most/step) * step}
	for i := range int(math.Round((a.to-a.from)/step)) + 1 {
		a.ticks = append(a.ticks, a.from+float64(i)*step)
	}
	return a
}

// logarithmic is an axis over figures above 0.
func logarithmic(least, most float64) axis {
	var marks []float64 // 1, 2, 5, 10 …
	for decade := math.Floor(math.Log10(least)); decade <= math.Ceil(math.Log10(most)); decade++ {
		for _, times := range []float64{1, 2, 5} {
			marks = append(marks, times*math.Pow(10, decade))
		}
	}
	from, to := 0, len(marks)-1
	for from+1 < len(marks) && marks[from+1] <= least*1.0000001 {
		from++
	}
	for to-1 > from && marks[to-1] >= most*.9999999 {
		to--
	}
	a := axis{from: marks[from], to: marks[to], log: true}
	few := to-from <= 12
	for i := from; i <= to; i++ {
		if few || i%3 == 0 {
			a.ticks = append(a.ticks, marks[i])
		}
	}
	return a
}

// axisOf is an axis that suits figures, of which it may have to be logarithmic to show the small beside the large.
func axisOf(figures []Spread, times float64) axis {
	least, most := math.Inf(1), math.Inf(-1)
	small, large := math.Inf(1), math.Inf(-1)
	for _, f := range figures {
		least, most = min(least, f.Min), max(most, f.Max)
		small, large = min(small, f.Median), max(large, f.Median)
	}
	if least > 0 && large > times*small {
		return logarithmic(least, most)
	}
	return linear(least, most)
}

// tick is a figure's text on an axis.
func tick(v float64) string {
	if v = math.Round(v*1e9) / 1e9; math.Abs(v) >= 1e7 || v != 0 && math.Abs(v) < 1e-4 {
		return strconv.FormatFloat(v, 'g', 3, 64)
	}
	s := strconv.FormatFloat(v, 'f', -1, 64)
	whole, part, _ := bytes.Cut([]byte(s), []byte("."))
	for at := len(whole) - 3; at > 0 && whole[at-1] != '-'; at -= 3 {
		whole = append(whole[:at], append([]byte(","), whole[at:]...)...)
	}
	if len(part) > 0 {
		return string(whole) + "." + string(part)
	}
	return string(whole)
}
