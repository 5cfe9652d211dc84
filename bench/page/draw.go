package main

import (
	"bytes"
	"image/color"
	"math"
	"slices"
	"strconv"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/text"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgsvg"
)

// The measures of a drawing.
const (
	chartWidth  = 720 * vg.Length(1)
	chartHeight = 300 * vg.Length(1)
	legendWidth = 120 * vg.Length(1)
	axisWidth   = 60 * vg.Length(1)
	groupWidth  = 0.85 // of the place of a group, which is 1; bars take it
)

// colour is 0xRRGGBB.
type colour uint32

// Okabe and Ito's palette, which people who do not see all colours tell apart, too.
const (
	blue   colour = 0x0072b2
	orange colour = 0xd55e00
	green  colour = 0x009e73
	pink   colour = 0xcc79a7
	yellow colour = 0xe69f00
	sky    colour = 0x56b4e9
	grey   colour = 0x8c959f
)

// RGBA makes it a color.Color.
func (c colour) RGBA() (r, g, b, a uint32) {
	return color.RGBA{uint8(c >> 16), uint8(c >> 8), uint8(c), 0xff}.RGBA()
}

// svg draws the chart: bars from zero, their medians in figures, and whiskers from the smallest to the largest round.
func (c chart) svg() ([]byte, error) {
	p := plot.New()
	p.Title.Text, p.Y.Label.Text = c.Title, c.axis
	p.Title.Padding, p.X.Padding, p.Y.Padding, p.Y.Label.Padding = 8, 0, 4, 6
	legend := plot.NewLegend()
	legend.Top, legend.Left, legend.Padding, legend.ThumbnailWidth = true, true, 4, 12

	var names []string // those of the legend
	var labels []string
	var ends plotter.XYLabels
	var whiskers struct {
		plotter.XYs
		plotter.YErrors
	}
	inGroup := 0
	for _, g := range c.groups {
		inGroup = max(inGroup, len(g.bars))
	}
	step := groupWidth / float64(inGroup)
	for i, g := range c.groups {
		labels = append(labels, g.label)
		for k, b := range g.bars {
			one, err := plotter.NewBarChart(plotter.Values{b.Median}, (chartWidth-legendWidth-axisWidth)*vg.Length(0.9*step)/vg.Length(len(c.groups)))
			if err != nil {
				return nil, err
			}
			one.XMin = float64(i) + (float64(k)-float64(len(g.bars)-1)/2)*step
			one.LineStyle.Width = 0
			one.Color = b.colour
			if inGroup > 1 && !slices.Contains(names, b.label) { // else the groups' labels name the bars
				names = append(names, b.label)
				legend.Add(b.label, one)
			}
			p.Add(one)
			ends.XYs = append(ends.XYs, plotter.XY{X: one.XMin, Y: b.Max})
			ends.Labels = append(ends.Labels, short(b.Median))
			whiskers.XYs = append(whiskers.XYs, plotter.XY{X: one.XMin, Y: b.Median})
			whiskers.YErrors = append(whiskers.YErrors, struct{ Low, High float64 }{b.Median - b.Min, b.Max - b.Median})
		}
	}
	spans, err := plotter.NewYErrorBars(whiskers)
	if err != nil {
		return nil, err
	}
	spans.CapWidth = 5
	figures, err := plotter.NewLabels(ends)
	if err != nil {
		return nil, err
	}
	figures.Offset.Y = 3
	for i := range figures.TextStyle {
		figures.TextStyle[i].XAlign = text.XCenter
		sans(8, &figures.TextStyle[i])
	}
	p.Add(spans, figures)
	p.NominalX(labels...)
	p.X.Padding = 4
	p.X.Min, p.X.Max = -0.5, float64(len(c.groups))-0.5
	p.Y.Min, p.Y.Max = 0, 1.08*p.Y.Max // place for the figures
	sans(13, &p.Title.TextStyle)
	sans(10, &p.X.Tick.Label, &p.Y.Label.TextStyle, &p.Y.Tick.Label, &legend.TextStyle)

	canvas := vgsvg.New(chartWidth, chartHeight)
	whole := draw.New(canvas)
	whole.FillPolygon(color.White, []vg.Point{{}, {X: chartWidth}, {X: chartWidth, Y: chartHeight}, {Y: chartHeight}})
	whole = draw.Crop(whole, 8, -8, 8, -8)
	p.Draw(draw.Crop(whole, 0, -legendWidth, 0, 0))
	legend.Draw(draw.Crop(whole, whole.Max.X-whole.Min.X-legendWidth+10, 0, 0, -40))
	var b bytes.Buffer
	if _, err := canvas.WriteTo(&b); err != nil {
		return nil, err
	}
	// Readers without the font get another one of the same widths, or the one that they have.
	return bytes.ReplaceAll(b.Bytes(), []byte("font-family:Liberation Sans;"), []byte("font-family:Liberation Sans,Arial,sans-serif;")), nil
}

// short writes a figure with at most three digits, unless more stand before the point, and at most two after it.
func short(v float64) string {
	if math.Abs(v) < 1 {
		return strconv.FormatFloat(math.Round(100*v)/100, 'f', -1, 64)
	}
	return number(v)
}

// sans gives texts a font without serifs.
func sans(size vg.Length, styles ...*text.Style) {
	for _, s := range styles {
		s.Font.Variant, s.Font.Size = "Sans", size
	}
}
