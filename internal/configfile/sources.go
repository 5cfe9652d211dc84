package configfile

import (
	"pdrouter/metadata"
	"pdrouter/router/config"
)

// EngineList is one role of a model: its list of engines, and where more of them come from.
type EngineList struct {
	Key     string // of the list: prefill, decode or engines
	Prefix  string // of the names of engines that DNS has, by default
	role    metadata.Role
	Engines *[]config.Engine
	Source  *config.Source
}

// EngineLists returns the roles of a model. They point into it.
func EngineLists(m *config.Model) [3]EngineList {
	return [3]EngineList{
		{"prefill", "prefill", metadata.Prefill, &m.Prefill, &m.PrefillFrom},
		{"decode", "decode", metadata.Decode, &m.Decode, &m.DecodeFrom},
		{"engines", "engine", metadata.Both, &m.Engines, &m.EnginesFrom},
	}
}
