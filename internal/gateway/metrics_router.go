package gateway

import (
	"pdrouter/internal/telemetry"
	metahandshake "pdrouter/metadata/handshake"
	"pdrouter/router"
	"pdrouter/router/fleet"
	"pdrouter/router/handoff"
	"pdrouter/router/kvevents"
	"pdrouter/router/migration"
)

// collectRouter reports what the router knows at a scrape.
func collectRouter(out *telemetry.Scrape, s router.Stats) {
	out.Set("pdrouter_requests_in_flight", float64(s.Requests))
	out.Set("pdrouter_background_responses", float64(s.Background))
	out.Set("pdrouter_request_body_bytes", float64(s.BodyBytes))
	out.Set("pdrouter_background_panics_total", float64(s.Panics))
	collectQueues(out, s)
	collectEngines(out, s)
	collectPairs(out, s)
	collectHandshakes(out, s.Handshakes)
	out.Set("pdrouter_kv_leaks_total", float64(s.Leaked))
	out.Set("pdrouter_foreign_reports_total", float64(s.Foreign))
	for _, f := range s.Reclaimed {
		out.Set("pdrouter_reclaims_total", float64(f.Count), f.Ending, f.By)
	}
	collectKVEvents(out, s.KVEvents)
	if len(s.KVEvents) > 0 {
		out.Set("pdrouter_learned_token_ids_bytes", float64(s.TokenBytes))
	}
	if m := s.Migration; m != nil {
		out.Set("pdrouter_migrations_running", float64(m.Running))
		out.Set("pdrouter_migrations_waiting", float64(m.Waiting))
		out.Set("pdrouter_conversations", float64(m.Conversations))
		out.Set("pdrouter_conversation_bytes", float64(m.Bytes))
		for engine, n := range m.PinnedBlocks {
			out.Set("pdrouter_pinned_kv_blocks", float64(n), engine)
		}
		for end, n := range m.PinsEnded {
			out.Set("pdrouter_pinned_answers_total", float64(n), migration.PinEnd(end).String())
		}
	}
	if p := s.Prefixes; p != nil {
		out.Set("pdrouter_prefix_entries", float64(p.Links))
		out.Set("pdrouter_prefix_bytes", float64(p.Bytes))
		out.Set("pdrouter_prefix_lookups_total", float64(p.Looked))
		out.Set("pdrouter_prefix_hits_total", float64(p.Known))
		out.Set("pdrouter_prefix_evicted_total", float64(p.Evicted))
	}
}

// collectKVEvents reports what engines say of their KV caches.
func collectKVEvents(out *telemetry.Scrape, engines []kvevents.Stats) {
	for _, s := range engines {
		out.SetBool("pdrouter_kv_events_connected", s.Connected, s.Engine)
		out.SetBool("pdrouter_kv_events_live", s.Live, s.Engine)
		out.Set("pdrouter_kv_index_blocks", float64(s.Blocks), s.Engine)
		out.Set("pdrouter_kv_index_orphans_total", float64(s.Orphans), s.Engine)
		out.Set("pdrouter_kv_index_refused_total", float64(s.Refused), s.Engine)
		out.Set("pdrouter_kv_events_total", float64(s.Events), s.Engine)
		out.Set("pdrouter_kv_events_gaps_total", float64(s.Gaps), s.Engine)
		out.Set("pdrouter_kv_events_resets_total", float64(s.Resets), s.Engine)
		out.Set("pdrouter_kv_events_replays_total", float64(s.Replays), s.Engine)
		out.Set("pdrouter_kv_events_decode_errors_total", float64(s.DecodeErrors), s.Engine)
		if s.Age >= 0 {
			out.Set("pdrouter_kv_events_age_seconds", s.Age, s.Engine)
		}
	}
}

func collectQueues(out *telemetry.Scrape, s router.Stats) {
	for _, q := range s.Queues {
		out.Set("pdrouter_queue_in_flight", float64(q.InFlight), q.Model)
		out.Set("pdrouter_queue_places", float64(q.Places), q.Model)
		out.Set("pdrouter_queue_waiting", float64(q.Waiting), q.Model)
		out.Set("pdrouter_queue_waiting_tenants", float64(q.Tenants), q.Model)
		out.Set("pdrouter_queue_waiting_largest_tenant", float64(q.Largest), q.Model)
		out.Set("pdrouter_queue_drain_seconds", q.Drain.Seconds(), q.Model)
		out.Set("pdrouter_queue_waited_total", float64(q.Waited), q.Model)
		for why, n := range q.Denied {
			out.Set("pdrouter_queue_denied_total", float64(n), q.Model, why)
		}
	}
	for model, d := range s.Forecasts {
		out.Set("pdrouter_predicted_first_token_error_ratio", d.Error, model)
	}
	collectScaling(out, s.Scalings)
	for _, r := range s.Retries {
		out.Set("pdrouter_retries_total", float64(r.Made), r.Model, "made")
		out.Set("pdrouter_retries_total", float64(r.Refused), r.Model, "refused")
	}
}

// collectScaling reports what autoscalers go by.
func collectScaling(out *telemetry.Scrape, models []fleet.Scaling) {
	for _, m := range models {
		for _, r := range m.Roles {
			if ratio, known := r.Saturation(); known {
				out.Set("pdrouter_scaling_saturation_ratio", ratio, m.Model, r.Role)
				out.Set("pdrouter_scaling_backlog_seconds", r.Backlog, m.Model, r.Role)
			}
			if r.Observed >= 0 {
				out.Set("pdrouter_scaling_observation_age_seconds", r.Observed, m.Model, r.Role)
			}
			out.Set("pdrouter_scaling_desired_replicas", float64(r.Wanted), m.Model, r.Role)
			for state, n := range map[string]int{"ready": r.Ready, "starting": r.Starting, "out": r.Out} {
				out.Set("pdrouter_scaling_replicas", float64(n), m.Model, r.Role, state)
			}
		}
		if m.TTFT >= 0 {
			out.Set("pdrouter_ttft_objective_ratio", m.TTFT, m.Model)
		}
		if m.ITL >= 0 {
			out.Set("pdrouter_itl_objective_ratio", m.ITL, m.Model)
		}
	}
}

func collectEngines(out *telemetry.Scrape, s router.Stats) {
	for _, e := range s.Engines {
		out.SetBool("pdrouter_engine_up", e.Up, e.Name)
		out.Set("pdrouter_engine_state", 1, e.Name, e.State)
		out.Set("pdrouter_engine_share", e.Share, e.Name)
		out.Set("pdrouter_engine_requests_in_flight", float64(e.InFlight), e.Name)
		if e.CacheTokens > 0 {
			out.Set("pdrouter_engine_prefix_cache_tokens", float64(e.CacheTokens), e.Name)
		}
		if s.Peers != nil {
			out.Set("pdrouter_engine_requests_elsewhere", float64(e.Others), e.Name)
		}
		if e.Unrouted != nil {
			out.Set("pdrouter_engine_requests_unrouted", float64(e.Unrouted.Requests), e.Name)
		}
		out.Set("pdrouter_engine_wait_seconds", e.Forecast.Wait, e.Name)
		out.Set("pdrouter_engine_streams", float64(e.Forecast.Streams), e.Name)
		out.Set("pdrouter_engine_prompt_ratio", e.Forecast.Prompts, e.Name)
		if e.Events != nil {
			out.SetBool("pdrouter_engine_events", *e.Events, e.Name)
		}
		if h := e.HandOffs; h != nil {
			out.SetBool("pdrouter_engine_recomputing", h.Recomputing, e.Name)
			for by, n := range h.Prompts {
				out.Set("pdrouter_recomputed_prompts_total", float64(n), e.Name, handoff.By(by).String())
			}
		}
		for reason, n := range e.Ejections {
			out.Set("pdrouter_engine_ejections_total", float64(n), e.Name, reason)
		}
		for why, n := range e.Leaked {
			out.Set("pdrouter_leaked_kv_blocks", float64(n), e.Name, why)
		}
		if e.Pins {
			out.Set("pdrouter_engine_pins_kv", 1, e.Name)
		}
		if e.MaybeLeaked > 0 {
			out.Set("pdrouter_unresolved_kv_blocks", float64(e.MaybeLeaked), e.Name)
		}
	}
	if s.Peers != nil {
		out.Set("pdrouter_peers", float64(s.Peers.Gateways))
		out.Set("pdrouter_peers_failures_total", float64(s.Peers.Failures))
		out.SetBool("pdrouter_peers_behind", s.Peers.Behind)
	}
	for _, p := range s.PanicModes {
		out.Set("pdrouter_panic_mode", 1, p.Model, p.Role)
	}
}

func collectPairs(out *telemetry.Scrape, s router.Stats) {
	ready := 0
	for _, p := range s.Pairs {
		is := p.Pairable && p.Warm
		if is {
			ready++
		}
		out.SetBool("pdrouter_pair_ready", is, p.Prefill, p.Decode)
		if p.Reason != "" {
			out.Set("pdrouter_unpairable", 1, p.Prefill, p.Decode, p.Reason)
		}
	}
	out.Set("pdrouter_pairs_ready", float64(ready))
	for _, p := range s.PairsOut {
		out.Set("pdrouter_pair_state", 1, p.Prefill, p.Decode, p.State)
		out.Set("pdrouter_pair_ejections_total", float64(p.Opened), p.Prefill, p.Decode)
	}
	for _, p := range s.HandOffs {
		out.SetBool("pdrouter_pair_slow", p.Slow, p.Prefill, p.Decode)
		out.Set("pdrouter_pair_hand_off_seconds", p.Seconds, p.Prefill, p.Decode)
	}
	for _, p := range s.Moved {
		out.Set("pdrouter_kv_blocks_total", float64(p.Blocks), p.Prefill, p.Decode)
		out.Set("pdrouter_kv_bytes_total", float64(p.Bytes), p.Prefill, p.Decode)
	}
}

func collectHandshakes(out *telemetry.Scrape, s metahandshake.Stats) {
	out.Set("pdrouter_pairs_waiting", float64(s.Waiting))
	out.Set("pdrouter_pair_handshakes_queued", float64(s.Queued))
	out.Set("pdrouter_pair_handshakes_in_flight", float64(s.InFlight))
	out.Set("pdrouter_pair_handshakes_total", float64(s.Done), "done")
	for why, n := range s.Failed {
		out.Set("pdrouter_pair_handshakes_total", float64(n), metahandshake.Failure(why).String())
	}
	took := make(map[float64]uint64, len(s.Took.Up))
	for i, bound := range metahandshake.TookBounds() {
		took[bound.Seconds()] = s.Took.Up[i]
	}
	out.SetHistogram("pdrouter_pair_handshake_seconds", s.Took.Count, s.Took.Sum.Seconds(), took)
}
