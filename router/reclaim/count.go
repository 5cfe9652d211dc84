package reclaim

import (
	"context"
	"log/slog"
	"time"

	"pdrouter/router/fleet"
)

// CountLeak counts KV that an engine keeps for a request that is over, until a lease ends or for good.
func (r *Reclaimer) CountLeak(ctx context.Context, m *Job, holder *fleet.Engine, why Cause) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	r.addLeak(m, holder, why, blockTokens(ctx, m, holder))
}

// leakIf counts what prefill holds, or may hold.
func (r *Reclaimer) leakIf(ctx context.Context, m *Job, why Cause, d Certainty) {
	switch d {
	case Certain:
		r.CountLeak(ctx, m, m.Prefill, why)
	case Possible:
		r.CountLeak(ctx, m, m.Prefill, CausePossible)
	}
}

// addLeak counts the KV that one request has leaked. block is the tokens of one block.
func (r *Reclaimer) addLeak(m *Job, holder *fleet.Engine, why Cause, block int) {
	blocks := (max(m.Tokens, 1) + block - 1) / block
	leased := holder == m.Prefill
	r.Leaks.Add(holder, why, blocks, leased, time.Now())
	event, level := "blocks stay held", slog.LevelWarn
	if why == CausePossible {
		event, level = "blocks may stay held", slog.LevelInfo
	} else if !m.counted {
		m.counted = true
		r.Leaks.Requests.Add(1)
	}
	r.log.Log(context.Background(), level, event, "engine", holder.Name, "blocks", blocks, "why", why.String(), "leased", leased,
		"transfer_id", m.Handoff.Transfer, "prefill", m.Prefill.Name, "decode", m.Decode.Name)
}

// defaultBlock is the tokens of one block of an engine that does not report it: stock vLLM's default.
const defaultBlock = 16

// blockTokens returns the tokens of one block of the engine.
func blockTokens(ctx context.Context, m *Job, e *fleet.Engine) int {
	recs := m.Snapshot.Fleet.Records(e)
	if len(recs) == 0 {
		recs = m.Snapshot.Fleet.Records(m.Prefill)
	}
	if len(recs) > 0 && recs[0].Layout.BlockTokens > 0 {
		return recs[0].Layout.BlockTokens * max(1, recs[0].Layout.Physical)
	}
	if at, ok := e.SideChannel(nil); ok && m.Snapshot.Stock != nil {
		if rec, err := m.Snapshot.Stock.First(ctx, at); err == nil && rec.Layout.BlockTokens > 0 {
			return rec.Layout.BlockTokens * max(1, rec.Layout.Physical)
		}
	}
	return defaultBlock
}
