package routes

// Verdicts is how many judgements of two engines are remembered.
func (h *Handler) Verdicts() int { return len(h.shapes.verdicts) }

// ConnectorEntry is one rank in the answer to GET /get_kv_connector_metadata.
type ConnectorEntry = connectorEntry
