package main

import (
	"pdrouter/metadata"
	"pdrouter/router/config"
)

// sourceOf is one role of a model: its list of engines, and where more of them come from.
type sourceOf struct {
	key     string // of the list: prefill, decode or engines
	prefix  string // of the names of engines that DNS has, by default
	role    metadata.Role
	engines *[]config.Engine
	source  *config.Source
}

// sourcesOf returns the roles of a model. They point into it.
func sourcesOf(m *config.Model) [3]sourceOf {
	return [3]sourceOf{
		{"prefill", "prefill", metadata.Prefill, &m.Prefill, &m.PrefillFrom},
		{"decode", "decode", metadata.Decode, &m.Decode, &m.DecodeFrom},
		{"engines", "engine", metadata.Both, &m.Engines, &m.EnginesFrom},
	}
}
