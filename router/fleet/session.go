package fleet

// noteSessions notes which models' policies look at the session of a request.
func (f *Fleet) noteSessions() {
	for _, planner := range f.planners() {
		if planner, can := planner.(interface{ Sessions(model string) bool }); can {
			for _, m := range f.Models {
				m.usesSessions = m.usesSessions || planner.Sessions(m.Name)
			}
		}
	}
}

// UsesSessions reports whether it matters for the model which session a request is of.
func (m *Model) UsesSessions() bool { return m.usesSessions }
