package policies

// PathStage is the role of the stage in which the policy cost prices paths.
const PathStage = "path"

// Stage is how one engine of a Choice was found, for people.
type Stage struct {
	Role       string      `json:"role"`   // prefill or decode
	Policy     string      `json:"policy"` // the preset, or "scored"
	Picker     string      `json:"picker"`
	Candidates []Explained `json:"candidates"` // all engines of the role, in the order of the configuration
	Paths      []Path      `json:"paths"`      // of the policy cost, in a stage with the role path
}

// Explained is what became of one engine in a Stage.
type Explained struct {
	Engine  string  `json:"engine"`
	LeftOut string  `json:"left_out,omitempty"` // why it was no candidate; "" if it was one
	Scores  []Score `json:"scores,omitempty"`
	Sum     float64 `json:"sum"` // of the scores, each times its weight
	Taken   bool    `json:"taken"`
}

// Score is what a scorer gave an engine.
type Score struct {
	Scorer string  `json:"scorer"`
	Score  float64 `json:"score"` // 0 to 1
	Weight float64 `json:"weight"`
}

// Explain is Choose, and says how each engine was found: prefill's stage, if there is one, then decode's.
func (p *Policy) Explain(q Request, f Fleet, d Draw) (Choice, []Stage) {
	e := &explainer{}
	return p.choose(q, f, d, e), e.stages
}

// explainer notes what becomes of engines in a choice. A nil one, as in Choose, notes nothing.
type explainer struct {
	stages []Stage
	paths  []Path
}

// begin begins a stage: all engines are left out until they are candidates. why says it of those that may be used.
func (e *explainer) begin(role string, by *role, engines []Engine, why string) {
	if e == nil {
		return
	}
	s := Stage{Role: role, Policy: by.name, Picker: by.pickerName}
	for i := range engines {
		x := Explained{Engine: engines[i].Name, LeftOut: why}
		if !engines[i].Usable {
			x.LeftOut = "it is not used now"
		}
		s.Candidates = append(s.Candidates, x)
	}
	e.stages = append(e.stages, s)
}

func (e *explainer) at(i int) *Explained { return &e.stages[len(e.stages)-1].Candidates[i] }

// candidates notes which engines are candidates.
func (e *explainer) candidates(at []int) {
	if e == nil {
		return
	}
	for _, i := range at {
		e.at(i).LeftOut = ""
	}
}

// leave notes why candidates were left out.
func (e *explainer) leave(at []int, keep []bool, why string) {
	if e == nil {
		return
	}
	for i, engine := range at {
		if !keep[i] {
			e.at(engine).LeftOut = why
		}
	}
}

// score notes what a scorer gave each candidate.
func (e *explainer) score(at []int, s scorer, scores []float64) {
	if e == nil {
		return
	}
	for i, engine := range at {
		x := e.at(engine)
		x.Scores = append(x.Scores, Score{s.name, scores[i], s.weight})
		x.Sum += s.weight * scores[i]
	}
}

// untake ends the stage of a partner that was not found: the engine before it is not taken.
func (e *explainer) untake(why string) {
	if e == nil {
		return
	}
	e.stages = e.stages[:len(e.stages)-1]
	for i := range e.stages[len(e.stages)-1].Candidates {
		if x := e.at(i); x.Taken {
			x.Taken, x.LeftOut = false, why
		}
	}
}

// take notes which engine was taken.
func (e *explainer) take(i int) {
	if e != nil {
		e.at(i).Taken = true
	}
}

// path notes a path that was priced, in a stage of its own. taken says that it is the cheapest so far.
func (e *explainer) path(p Path, taken bool) {
	if e == nil {
		return
	}
	for i := range e.paths {
		e.paths[i].Taken = e.paths[i].Taken && !taken
	}
	p.Taken = taken
	e.paths = append(e.paths, p)
}

// takePath ends a choice by prices: the engines of the path that is taken are.
func (e *explainer) takePath() {
	if e == nil {
		return
	}
	for _, p := range e.paths {
		for _, s := range e.stages {
			for i := range s.Candidates {
				x := &s.Candidates[i]
				x.Taken = x.Taken || p.Taken && (s.Role == "prefill" && x.Engine == p.Prefill || s.Role == "decode" && x.Engine == p.Decode)
			}
		}
	}
	e.stages = append(e.stages, Stage{Role: PathStage, Policy: byCost, Paths: e.paths})
}
