package refengine

import "strings"

// planeMetrics adds what the engine knows of its ranks' agents.
func (e *Engine) planeMetrics(w *strings.Builder) {
	if e.plane == nil {
		return
	}
	i := e.plane.together.Ignored()
	metric(w, "refengine_ignored_reports_total", "counter", "What ranks said without effect, by why.",
		series{`why="foreign"`, i.Foreign}, series{`why="stranger"`, i.Stranger}, series{`why="doubled"`, i.Doubled},
		series{`why="unknown"`, i.Unknown}, series{`why="misfit"`, i.Misfit}, series{`why="missed"`, e.plane.together.Missed()})
}
