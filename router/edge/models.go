package edge

import (
	"encoding/json"
	"maps"
	"net/url"
	"slices"

	"pdrouter/auth"
	"pdrouter/router/fleet"
	"pdrouter/router/openai"
)

// modelList is the answer to GET /v1/models.
func (s *Snapshot) modelList(who auth.Principal) []byte {
	b, _ := json.Marshal(struct { // strings and numbers only: it never fails
		Object string `json:"object"`
		Data   []card `json:"data"`
	}{"list", s.cards(who)})
	return b
}

// oneModel is the answer to GET /v1/models/{name}. A name may stand in the path as it is, or escaped as one part of a path.
func (s *Snapshot) oneModel(who auth.Principal, name string) ([]byte, *openai.Error) {
	for _, c := range s.cards(who) {
		if c.ID == name || url.PathEscape(c.ID) == name {
			b, _ := json.Marshal(c)
			return b, nil
		}
	}
	return nil, openai.ErrNoModel(name)
}

// card is one model as clients see it.
type card struct {
	ID      string  `json:"id"`
	Object  string  `json:"object"`
	Created int64   `json:"created"`
	Owner   string  `json:"owned_by"`
	Root    *string `json:"root,omitempty"`
	Parent  *string `json:"parent,omitempty"`
	MaxLen  int     `json:"max_model_len,omitempty"`
}

// cards are the models that the caller may name: the configured ones in their order, each with the adapters that its
// engines report after it. Where engines differ, the smallest context counts, and otherwise what the first one says.
func (s *Snapshot) cards(who auth.Principal) []card {
	all := []card{}
	for _, mc := range s.Config.Models {
		m := s.Fleet.Models[mc.Name]
		base := card{ID: m.Name, Object: "model", Owner: "pdrouter"}
		found := map[string]card{}
		for _, e := range slices.Concat(m.Decode, m.Prefill) {
			r := e.Reported.Load()
			if r == nil {
				continue
			}
			base.merge(r.Base)
			for name, a := range r.Adapters {
				if s.Fleet.AdapterOf(name) == m && who.Permits(name) {
					c, ok := found[name]
					if !ok {
						c = card{ID: name, Object: "model", Owner: "pdrouter", Parent: &m.Name}
					}
					c.merge(a)
					found[name] = c
				}
			}
		}
		if who.Permits(m.Name) {
			all = append(all, base)
		}
		for _, name := range slices.Sorted(maps.Keys(found)) {
			all = append(all, found[name])
		}
	}
	return all
}

func (c *card) merge(m fleet.Served) {
	if c.Created == 0 {
		c.Created = m.Created
	}
	if c.Root == nil && m.Root != "" {
		c.Root = &m.Root
	}
	if m.MaxLen > 0 && (c.MaxLen == 0 || m.MaxLen < c.MaxLen) {
		c.MaxLen = m.MaxLen
	}
}
