package bench

// modelledSuites stand in front of modelled engines.
func modelledSuites() []Suite { return []Suite{handoverSuite(), replaySuite()} }
