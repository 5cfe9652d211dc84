package routes

import (
	"encoding/json"
	"errors"
	"net/http"
	"strconv"

	"pdrouter/metadata"
)

// connectorEntry is one rank in the answer to GET /get_kv_connector_metadata. The names are those that vLLM's connectors use
// where they have one.
type connectorEntry struct {
	EngineID      string   `json:"engine_id"`
	AgentName     string   `json:"agent_name"`
	AgentMetadata []byte   `json:"agent_metadata"` // base64
	BaseAddrs     []uint64 `json:"kv_caches_base_addr"`
	DeviceID      int      `json:"device_id"`
	NumBlocks     int      `json:"num_blocks"` // kernel blocks of each region
	BlockLen      uint64   `json:"block_len"`  // bytes from block to block in the first region
	BlockLens     []uint64 `json:"block_lens"` // in each region
	BlockSize     int      `json:"block_size"` // tokens of a logical block
	CacheLayout   string   `json:"kv_cache_layout"`

	Connector     string `json:"connector"`
	Compatibility string `json:"compatibility"`
	Transport     string `json:"transport"`
	Generation    uint64 `json:"generation"`
	DP            int    `json:"dp_rank"`
	PP            int    `json:"pp_rank"`
	TP            int    `json:"tp_rank"`
	DPSize        int    `json:"dp_size"`
	PPSize        int    `json:"pp_size"`
	TPSize        int    `json:"tp_size"`
}

func newConnectorEntry(rec metadata.Record) connectorEntry {
	e := connectorEntry{
		EngineID: rec.EngineID, AgentName: rec.Agent, AgentMetadata: rec.Blob, BaseAddrs: []uint64{}, BlockLens: []uint64{},
		BlockSize: rec.Layout.BlockTokens, Connector: rec.Connector, Compatibility: rec.Compatibility, Transport: rec.Transport,
		Generation: rec.Generation, DP: rec.Rank.DP, PP: rec.Rank.PP, TP: rec.Rank.TP, DPSize: rec.Size.DP, PPSize: rec.Size.PP, TPSize: rec.Size.TP,
	}
	if e.EngineID == "" {
		e.EngineID = rec.ID()
	}
	switch rec.Layout.Order {
	case metadata.HeadsFirst:
		e.CacheLayout = "HND"
	case metadata.TokensFirst:
		e.CacheLayout = "NHD"
	}
	for i, region := range rec.Layout.Regions {
		if i == 0 {
			e.DeviceID, e.NumBlocks, e.BlockLen = region.Device, region.Blocks, region.BlockStride
		}
		e.BaseAddrs, e.BlockLens = append(e.BaseAddrs, region.Base), append(e.BlockLens, region.BlockStride)
	}
	return e
}

// connectorMetadata answers with tp rank → dp rank → what a peer's connector needs of that rank, or with dp rank → … of one tp
// rank if the path names it. Of an engine with pipeline stages it shows one, the first if the query does not say which. An engine
// that is not there or hands nothing off is null: the caller then serves without it. A rank that is not there is {}.
func (h *Handler) connectorMetadata(w http.ResponseWriter, r *http.Request) error {
	caller, err := h.auth.Authorize(r, Access{Action: List})
	if err != nil {
		return err
	}
	engine, stage, tp := caller.Engine, 0, -1
	query := r.URL.Query()
	if query.Has("engine") {
		engine = query.Get("engine")
	}
	if query.Has("pp") {
		if stage, err = rankIndex(query.Get("pp")); err != nil {
			return bad("pp", "pp is %.40q; want the index of a pipeline stage", query.Get("pp"))
		}
	}
	if path := r.PathValue("tp"); path != "" {
		if tp, err = rankIndex(path); err != nil {
			return errors.Join(err, metadata.ErrNotFound)
		}
	}
	if engine == "" {
		return bad("engine", "the token names no engine; want ?engine=NAME")
	}
	byTP, err := h.connectorRanks(r, engine, stage)
	switch {
	case err != nil:
		return err
	case byTP == nil:
		return sendBytes(w, "application/json", []byte("null"), nil)
	case tp < 0:
		b, err := json.Marshal(byTP)
		return sendBytes(w, "application/json", b, err)
	case byTP[tp] == nil:
		return sendBytes(w, "application/json", []byte("{}"), nil)
	}
	b, err := json.Marshal(byTP[tp])
	return sendBytes(w, "application/json", b, err)
}

// connectorRanks returns the ranks of a stage that the caller may read, or nil if the engine has none that hand off.
func (h *Handler) connectorRanks(r *http.Request, engine string, stage int) (map[int]map[int]connectorEntry, error) {
	if metadata.ValidName(engine) != nil {
		return nil, nil // no engine has such a name
	}
	caller, err := h.auth.Authorize(r, Access{Action: Read, Engine: engine})
	if err != nil {
		return nil, err
	}
	recs, _, err := h.access(r, caller).engine(engine, metadata.Rank{})
	switch {
	case errors.Is(err, metadata.ErrNotFound):
		return nil, nil
	case err != nil:
		return nil, err
	case recs[0].Connector == "":
		return nil, nil
	}
	byTP := map[int]map[int]connectorEntry{}
	for _, rec := range recs {
		if rec.Rank.PP != stage {
			continue
		}
		if byTP[rec.Rank.TP] == nil {
			byTP[rec.Rank.TP] = map[int]connectorEntry{}
		}
		byTP[rec.Rank.TP][rec.Rank.DP] = newConnectorEntry(rec)
	}
	return byTP, nil
}

// rankIndex reads one index of a rank.
func rankIndex(s string) (int, error) {
	n, err := strconv.Atoi(s)
	if err == nil && (n < 0 || strconv.Itoa(n) != s) {
		err = strconv.ErrSyntax
	}
	return n, err
}
