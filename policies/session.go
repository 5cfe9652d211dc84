package policies

// session rates the home of the request's session 1 and every other engine 0. The home follows from the names of the engines alone, so
// all gateways have the same one, and an engine that comes or goes moves only the sessions whose home it is or was. Requests that name no
// session have no home.
type session struct{}

func (session) Score(c *Candidates, scores []float64) {
	if c.Request.Session == 0 {
		return
	}
	home, high := 0, uint64(0)
	for i := range scores { // rendezvous hashing
		if h := mix(c.Request.Session ^ nameHash(c.Engine(i).Name)); h >= high {
			home, high = i, h
		}
	}
	scores[home] = 1
}

// nameHash is FNV-1a, 64 bits.
func nameHash(s string) uint64 {
	h := uint64(14695981039346656037)
	for i := range len(s) {
		h = (h ^ uint64(s[i])) * 1099511628211
	}
	return mix(h)
}
