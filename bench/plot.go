package bench

// Plot is a drawing of a report's figures.
type Plot struct {
	Name  string `json:"name"`
	Title string `json:"title"`
}

// SVG draws it.
func (p Plot) SVG() []byte { return nil }
