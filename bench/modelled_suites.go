package bench

// modelledSuites stand in front of engines whose computing is modelled.
func modelledSuites() []Suite { return []Suite{handoverSuite(), referenceSuite(), replaySuite()} }
