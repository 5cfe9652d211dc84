package inspect

import (
	"cmp"
	"fmt"
	"net"
	"slices"
	"strconv"

	"pdrouter/router/config"
	"pdrouter/router/connector"
)

// Learn makes a model's configuration of what its engines have said. Prefill and decode engines, or engines that do both, must all have
// been asked without an error. name is the model's name, or "" if the engines decide. What was learned of an engine also goes to its Entry.
func Learn(name string, engines []Engine) (config.Model, error) {
	m := config.Model{Name: name}
	if m.Name == "" {
		var err error
		if m.Name, err = commonModel(engines); err != nil {
			return m, err
		}
	}
	conn, err := commonConnector(engines)
	if err != nil {
		return m, err
	}
	m.Connector = conn
	for i, e := range engines {
		entry := e.Entry
		if h := e.Facts.HandOff; h != nil && m.Stock() {
			entry.SideChannel = net.JoinHostPort(h.Host, strconv.Itoa(h.Port))
			entry.RequestIDRandomizationDisabled = h.PlainNames
			if e.Role == Decode && h.TP > 1 {
				entry.TensorParallel = h.TP
			}
		}
		if e.Role == Prefill && e.Facts.Bootstrap != connector.DefaultBootstrapPort {
			entry.BootstrapPort = e.Facts.Bootstrap
		}
		engines[i].Entry = entry
		switch e.Role {
		case Prefill:
			m.Prefill = append(m.Prefill, entry)
		case Decode:
			m.Decode = append(m.Decode, entry)
		default:
			m.Engines = append(m.Engines, entry)
		}
	}
	return m, nil
}

// commonModel returns the first model that every engine serves.
func commonModel(engines []Engine) (string, error) {
	for _, m := range engines[0].Facts.Models {
		everywhere := !slices.ContainsFunc(engines, func(e Engine) bool {
			return !slices.ContainsFunc(e.Facts.Models, func(other Model) bool { return other.Name == m.Name })
		})
		if everywhere {
			return m.Name, nil
		}
	}
	for _, e := range engines[1:] {
		if a, b := engines[0].Facts.Models[0].Name, e.Facts.Models[0].Name; a != b {
			return "", fmt.Errorf("%s serves %q, and %s %q; want engines of one model (--served-model-name)", engines[0].Entry.URL, a, e.Entry.URL, b)
		}
	}
	return "", fmt.Errorf("no model is served by all engines")
}

// commonConnector returns the name of the connector that all engines have.
func commonConnector(engines []Engine) (string, error) {
	if engines[0].Role == Both {
		return connector.Default, nil
	}
	var name, by string
	for _, e := range engines {
		fits, err := connectorOf(e)
		if err != nil {
			return "", err
		}
		for _, c := range connector.All() {
			if has := c.Traits().Name; fits(c.Traits()) {
				if name != "" && name != has {
					return "", fmt.Errorf("%s wants connector %s, and %s connector %s; want engines of one kind", by, name, e.Entry.URL, has)
				}
				name, by = has, e.Entry.URL
			}
		}
	}
	return name, nil
}

// connectorOf says what a connector for the engine is like.
func connectorOf(e Engine) (func(*connector.Traits) bool, error) {
	switch h := e.Facts.HandOff; {
	case e.Facts.Kind == SGLang:
		return func(t *connector.Traits) bool { return t.Meets }, nil
	case e.Facts.HandOffErr != nil:
		return nil, fmt.Errorf("%s fails a request that another engine is to go on with: %w", e.Entry.URL, e.Facts.HandOffErr)
	case h == nil && e.Facts.Kind == VLLM:
		return nil, fmt.Errorf("%s hands no KV off: start vLLM with --kv-transfer-config, or name the engine with --engine", e.Entry.URL)
	case h == nil:
		return nil, fmt.Errorf("%s does not say how it hands KV off; write a configuration file, or name the engine with --engine", e.Entry.URL)
	default: // engines that do not say are older ones, which pull
		mode := cmp.Or(h.Mode, "pull")
		return func(t *connector.Traits) bool { return t.Stock != nil && t.Stock.TransferMode == mode }, nil
	}
}
