package telemetry

// engines are the metrics of engines, of pairs of them, and of the KV blocks that they exchange.
func engines() []Subject {
	return []Subject{
		{
			Title: "Engines",
			Intro: "The series of an engine are dropped when it has left the configuration and its last request has ended. If the engine " +
				"comes back, its counters start again at 0.",
			Metrics: []Metric{
				{
					Name: "pdrouter_engine_up", Kind: Gauge, Unit: "boolean", Labels: []string{"engine"},
					Help: "1 unless the engine is down.",
				},
				{
					Name: "pdrouter_engine_state", Kind: Gauge, Unit: "boolean", Labels: []string{"engine", "state"},
					Help: "1 for the state of the engine: up, slow_start, half_open, open, slow, overloaded, draining, down or unchecked.",
					Use:  "Alert if an engine is open, slow or down for 5 minutes.",
				},
				{
					Name: "pdrouter_engine_share", Kind: Gauge, Unit: "ratio", Labels: []string{"engine"},
					Help: "Part of its normal share of requests that the engine may get: below 1 during slow start, 0 while it is ejected.",
				},
				{
					Name: "pdrouter_engine_requests_in_flight", Kind: Gauge, Unit: "requests", Labels: []string{"engine"},
					Help: "Requests that the gateway has in progress on the engine (legs).",
				},
				{
					Name: "pdrouter_engine_requests_elsewhere", Kind: Gauge, Unit: "requests", Labels: []string{"engine"},
					Help: "Requests that other gateways have in progress on the engine, as they said last. Only gateways with metadata.store: redis have this series.",
				},
				{
					Name: "pdrouter_engine_requests_unrouted", Kind: Gauge, Unit: "requests", Labels: []string{"engine"},
					Help: "Requests that the engine reports beyond those that gateways have sent there. Only engines whose latest report counts have this series.",
					Use:  "If it is more than 0 for long, clients ask the engine directly, or another router does.",
				},
				{
					Name: "pdrouter_engine_wait_seconds", Kind: Gauge, Unit: "seconds", Labels: []string{"engine"},
					Help: "Predicted time until the engine begins with a prompt that it is given now.",
					Use:  "If it is more than the objective on all engines that compute prompts, there are too few of them.",
				},
				{
					Name: "pdrouter_engine_streams", Kind: Gauge, Unit: "requests", Labels: []string{"engine"},
					Help: "Answers that the engine gives or is to give.",
				},
				{
					Name: "pdrouter_engine_prompt_ratio", Kind: Gauge, Unit: "ratio", Labels: []string{"engine"},
					Help: "Part of the last 20 s, at most 0.9, in which the engine computed prompts.",
				},
				{
					Name: "pdrouter_engine_events", Kind: Gauge, Unit: "boolean", Labels: []string{"engine"},
					Help: "1 while the event stream of the engine is open. Only engines with the key control have this series.",
				},
				{
					Name: "pdrouter_engine_recomputing", Kind: Gauge, Unit: "boolean", Labels: []string{"engine"},
					Help: "1 while the decode engine computes at least half of the prompts whose KV it should receive. The series begins with its first hand-off.",
					Use:  "Alert if it is 1 for a minute: answers are right, but each prompt is computed twice. operations.md says what to look at.",
				},
				{
					Name: "pdrouter_recomputed_prompts_total", Kind: Counter, Unit: "requests", Labels: []string{"engine", "by"},
					Help: "Split requests whose prompt the decode engine computed, by how that was seen: by count of its cached tokens; by transfer, which failed as the plane reports; or by time of the first token, for engines that count nothing.",
				},
				{
					Name: "pdrouter_engine_ejections_total", Kind: Counter, Unit: "ejections", Labels: []string{"engine", "reason"}, AtStart: "all",
					Help: "Times the engine was ejected although it is reachable: answers, streams, latency or overload.",
				},
				{
					Name: "pdrouter_panic_mode", Kind: Gauge, Unit: "boolean", Labels: []string{"model", "role"},
					Help: "1 while ejected engines of the role get requests because too few others are left.",
					Use:  "Alert at once: most engines of the role fail.",
				},
			},
		},
		{
			Title: "Migration",
			Intro: "Moves of conversations' KV between engines; see [operations](operations.md#move-conversations-off-an-engine). The series are there while migration.mode is not disabled.",
			Metrics: []Metric{
				{
					Name: "pdrouter_migrations_total", Kind: Counter, Unit: "moves", Labels: []string{"reason", "result"},
					Help: "Conversations that were moved, or were not, by why they were to be moved (drain, route, warm or replicate) and what became of that: moved, dry_run, " +
						"no_target, already_there, evicted, left, restarted, short, idle, no_hand_off, hybrid_cache, refused, failed, late, stopped or unneeded.",
					Use: "Alert if failed and late are more than a tenth: look for `conversation not moved` in the log.",
				},
				{
					Name: "pdrouter_migrated_tokens_total", Kind: Counter, Unit: "tokens", Labels: []string{"reason"},
					Help: "Tokens whose KV was moved.",
				},
				{
					Name: "pdrouter_migrated_bytes_total", Kind: Counter, Unit: "bytes", Labels: []string{"reason"},
					Help: "KV that was moved, by what it takes on all ranks of the target. Only of engines that say how large their blocks are.",
				},
				{
					Name: "pdrouter_migration_seconds", Kind: Histogram, Unit: "seconds", Labels: []string{"reason"},
					Help: "Duration of the moves that succeeded.",
				},
				{
					Name: "pdrouter_migration_gained_seconds_total", Kind: Counter, Unit: "seconds", Labels: []string{"kind"},
					Help: "What requests gained by waiting for a move, how much longer it could have taken until they had done as well without it, " +
						"by kind: predicted (as their paths were chosen, in mode dry_run too), measured (by what the moves took) or lost (what they waited for moves that failed).",
					Use: "Moves do not pay if measured is far below predicted, or lost is above measured. Then take route out of migration.uses.",
				},
				{
					Name: "pdrouter_migrations_running", Kind: Gauge, Unit: "moves", Help: "Moves in progress.",
				},
				{
					Name: "pdrouter_migrations_waiting", Kind: Gauge, Unit: "moves", Help: "Conversations that wait to be moved.",
				},
				{
					Name: "pdrouter_conversations", Kind: Gauge, Unit: "conversations", Help: "Conversations that are kept, to be moved.",
				},
				{
					Name: "pdrouter_conversation_bytes", Kind: Gauge, Unit: "bytes", Help: "Memory of these; migration.memory is the bound.",
				},
				{
					Name: "pdrouter_pinned_kv_blocks", Kind: Gauge, Unit: "blocks", Labels: []string{"engine"},
					Help: "KV blocks of answers that a decode engine with bidirectional_kv_xfer pins for a move of this gateway, within migration.pinned_share. Absent of engines that pin none.",
				},
				{
					Name: "pdrouter_pinned_answers_total", Kind: Counter, Unit: "answers", Labels: []string{"result"},
					Help: "Answers that were pinned for a move, by what became of that: read, not_read (the move failed, or was not needed), replaced (the conversation has gone on), not_kept (its turn is not), " +
						"expired (migration.pinned_for), no_room (migration.pinned_share), engine_gone or stopped.",
					Use: "Pins bring little if read is few beside the others. Then leave migration.pinned_for at 0.",
				},
			},
		},
		{
			Title: "Pairs",
			Intro: "A pair is a prefill engine and a decode engine of the same model. There can be as many pairs as the product of both numbers, " +
				"so the counters of a pair begin with its first event.",
			Metrics: []Metric{
				{
					Name: "pdrouter_pair_ready", Kind: Gauge, Unit: "boolean", Labels: []string{"prefill", "decode"},
					Help: "1 if the engines of the pair are pairable and up, and their handshake is done.",
				},
				{
					Name: "pdrouter_pairs_ready", Kind: Gauge, Unit: "pairs",
					Help: "Number of ready pairs: the sum of pdrouter_pair_ready.",
				},
				{
					Name: "pdrouter_unpairable", Kind: Gauge, Unit: "boolean", Labels: []string{"prefill", "decode", "reason"},
					Help: "1 for each pair that cannot exchange KV blocks. The series ends when the engines fit each other.",
					Use:  "Alert on any. metadata.md explains each reason.",
				},
				{
					Name: "pdrouter_pair_state", Kind: Gauge, Unit: "boolean", Labels: []string{"prefill", "decode", "state"},
					Help: "1 for the circuit breaker state of each pair that was ejected before: closed, open or half_open.",
				},
				{
					Name: "pdrouter_pair_ejections_total", Kind: Counter, Unit: "ejections", Labels: []string{"prefill", "decode"},
					Help: "Times the pair was ejected because transfers between its engines failed.",
					Use:  "Alert if a pair is ejected more than 3 times in 10 minutes: check the network between its engines.",
				},
				{
					Name: "pdrouter_pair_slow", Kind: Gauge, Unit: "boolean", Labels: []string{"prefill", "decode"},
					Help: "1 while hand-offs of the pair take three times as long as they used to, and as those of other pairs of the model. 0 while the decode engine recomputes (pdrouter_engine_recomputing), however long they take. Pairs without a hand-off in the last 5 minutes have no series.",
					Use:  "Alert if it is 1 for a minute: check the network between its engines, and decode's queue.",
				},
				{
					Name: "pdrouter_pair_hand_off_seconds", Kind: Gauge, Unit: "seconds", Labels: []string{"prefill", "decode"},
					Help: "Mean time from prefill's answer to the first token of a stream, of the pair's recent hand-offs. It is long too while the decode engine recomputes, without pdrouter_pair_slow.",
				},
				{
					Name: "pdrouter_pairs_waiting", Kind: Gauge, Unit: "requests",
					Help: "Requests that wait for the handshake of their pair.",
					Use:  "Alert if it is above 0 for a minute.",
				},
				{
					Name: "pdrouter_pair_handshakes_queued", Kind: Gauge, Unit: "handshakes",
					Help: "Handshakes that wait for their turn.",
				},
				{
					Name: "pdrouter_pair_handshakes_in_flight", Kind: Gauge, Unit: "handshakes",
					Help: "Handshakes in progress.",
				},
				{
					Name: "pdrouter_pair_handshakes_total", Kind: Counter, Unit: "handshakes", Labels: []string{"outcome"}, AtStart: "all",
					Help: "Handshakes that ended: done, timeout, unreachable (no connection, or it broke), refused (an error answer), unpairable, restarted (an engine restarted meanwhile), closed (the gateway stopped), busy (the queue was full) or other.",
				},
				{
					Name: "pdrouter_pair_handshake_seconds", Kind: Histogram, Unit: "seconds", AtStart: "all",
					Help: "Duration of handshakes that were started, whatever their outcome.",
				},
			},
		},
		{
			Title: "KV blocks",
			Intro: "A stock engine may keep KV blocks after a request. [operations.md](operations.md#what-stock-engines-hold-after-a-request) explains when.",
			Metrics: []Metric{
				{
					Name: "pdrouter_kv_blocks_total", Kind: Counter, Unit: "blocks", Labels: []string{"prefill", "decode"},
					Help: "KV blocks that consumer ranks received completely. Only with the connector kvplane.",
				},
				{
					Name: "pdrouter_kv_bytes_total", Kind: Counter, Unit: "bytes", Labels: []string{"prefill", "decode"},
					Help: "Bytes of KV blocks that were transferred. Only with the connector kvplane.",
				},
				{
					Name: "pdrouter_kv_leaks_total", Kind: Counter, Unit: "requests", AtStart: "all",
					Help: "Requests that left KV blocks in a stock engine. The blocks stay until the lease ends or, on a decode engine with push, until the engine restarts.",
					Use:  "Alert if it grows. The log line \"blocks stay held\" names the transfer and the engines.",
				},
				{
					Name: "pdrouter_leaked_kv_blocks", Kind: Gauge, Unit: "blocks", Labels: []string{"engine", "why"},
					Help: "Estimate of the KV blocks that a stock engine still holds for requests that have ended, by the reason why they cannot be freed.",
					Use:  "A prefill engine frees them when the lease ends. A decode engine with push may need a restart.",
				},
				{
					Name: "pdrouter_unresolved_kv_blocks", Kind: Gauge, Unit: "blocks", Labels: []string{"engine"},
					Help: "KV blocks that a stock engine may hold for requests that have ended. It is not known yet whether it does. The value never exceeds the blocks that the engine reports as used.",
				},
				{
					Name: "pdrouter_engine_pins_kv", Kind: Gauge, Unit: "boolean", Labels: []string{"engine"},
					Help: "Whether a decode engine pins the KV blocks of what it has answered, as vLLM does with bidirectional_kv_xfer. Absent if it does not, or has not shown it.",
					Use:  "If pdrouter_leaked_kv_blocks of the engine grows too, start it without bidirectional_kv_xfer.",
				},
				{
					Name: "pdrouter_reclaims_total", Kind: Counter, Unit: "requests", Labels: []string{"ending", "by"},
					Help: "Requests whose leaked KV blocks were freed, by how the request ended and what freed the blocks.",
				},
				{
					Name: "pdrouter_foreign_reports_total", Kind: Counter, Unit: "reports", AtStart: "all",
					Help: "Reports of transfers that were rejected because they are impossible or their sender takes no part in the transfer.",
					Use:  "Alert above 0: an engine is faulty or hostile.",
				},
			},
		},
		{
			Title: "KV events",
			Intro: "Engines with the key `kv_events` have these metrics: what they report of the blocks in their prefix caches. The counters of an engine " +
				"start again at 0 if its `kv_events` change.",
			Metrics: []Metric{
				{
					Name: "pdrouter_kv_events_connected", Kind: Gauge, Unit: "boolean", Labels: []string{"engine"},
					Help: "1 while the engine publishes to the gateway.",
					Use:  "Alert if it is 0 for 5 minutes while pdrouter_engine_up is 1: kv_events names another address than the engine's.",
				},
				{
					Name: "pdrouter_kv_events_live", Kind: Gauge, Unit: "boolean", Labels: []string{"engine"},
					Help: "1 while no event of the engine is missing. Without it routing estimates what the engine holds.",
				},
				{
					Name: "pdrouter_kv_index_blocks", Kind: Gauge, Unit: "blocks", Labels: []string{"engine"},
					Help: "Blocks that the engine has reported and not removed, each counted once for every tier and KV cache group. limits.kv_index_blocks bounds the sum.",
				},
				{
					Name: "pdrouter_learned_token_ids_bytes", Kind: Gauge, Unit: "bytes",
					Help: "Memory for the token ids of prompts that the gateway has learned from prefill engines, of models whose engines have kv_events. At most 64 for each block of limits.kv_index_blocks.",
				},
				{
					Name: "pdrouter_kv_index_orphans_total", Kind: Counter, Unit: "blocks", Labels: []string{"engine"}, AtStart: "all",
					Help: "Blocks that were left out because the block before them is not known: it was stored before the gateway could hear of it.",
					Use:  "Some follow each start of the gateway. If it grows always, the engine lacks replay_endpoint, or keeps too few batches (buffer_steps).",
				},
				{
					Name: "pdrouter_kv_index_refused_total", Kind: Counter, Unit: "blocks", Labels: []string{"engine"}, AtStart: "all",
					Help: "Blocks that were left out because the index is full, or because the engine's report of them is inconsistent.",
					Use:  "If it grows, raise limits.kv_index_blocks.",
				},
				{
					Name: "pdrouter_kv_events_total", Kind: Counter, Unit: "events", Labels: []string{"engine"}, AtStart: "all",
					Help: "Events of the engine that were entered into the index.",
				},
				{
					Name: "pdrouter_kv_events_gaps_total", Kind: Counter, Unit: "gaps", Labels: []string{"engine"}, AtStart: "all",
					Help: "Times that batches of events were lost on the way to the gateway.",
					Use:  "If it grows, the gateway or the network is too slow for the engine: ZeroMQ drops what a subscriber does not take.",
				},
				{
					Name: "pdrouter_kv_events_resets_total", Kind: Counter, Unit: "resets", Labels: []string{"engine"}, AtStart: "all",
					Help: "Times that all blocks of the engine were forgotten: it was restarted, or lost events could not be had by a replay.",
				},
				{
					Name: "pdrouter_kv_events_replays_total", Kind: Counter, Unit: "replays", Labels: []string{"engine"}, AtStart: "all",
					Help: "Replays of old events that were asked of the engine: at each connection, and for lost batches at most every 30 s.",
				},
				{
					Name: "pdrouter_kv_events_decode_errors_total", Kind: Counter, Unit: "batches", Labels: []string{"engine"}, AtStart: "all",
					Help: "Batches of events that could not be read. All blocks of the engine are forgotten at each.",
					Use:  "Alert above 0: the engine sends a format that this version does not know.",
				},
				{
					Name: "pdrouter_kv_events_age_seconds", Kind: Gauge, Unit: "seconds", Labels: []string{"engine"},
					Help: "Time since the engine has published. An idle engine publishes nothing. The series begins with the first batch.",
				},
			},
		},
		{
			Title: "Prefix index",
			Intro: "These metrics exist if a model has the policy `prefix`. A prompt is looked up in pieces.",
			Metrics: []Metric{
				{
					Name: "pdrouter_prefix_entries", Kind: Gauge, Unit: "entries",
					Help: "Entries of the index: pieces of prompts with the engines that got them. limits.prefix_index_entries bounds it.",
				},
				{
					Name: "pdrouter_engine_prefix_cache_tokens", Kind: Gauge, Unit: "tokens", Labels: []string{"engine"},
					Help: "Tokens that the prefix cache of the engine holds, as its metrics say. The estimate of what it has cached goes by that. Engines that do not say that have no such series.",
				},
				{
					Name: "pdrouter_prefix_bytes", Kind: Gauge, Unit: "bytes",
					Help: "Memory reserved for the index.",
				},
				{
					Name: "pdrouter_prefix_lookups_total", Kind: Counter, Unit: "pieces", AtStart: "all",
					Help: "Pieces of prompts that were looked up in the index.",
				},
				{
					Name: "pdrouter_prefix_hits_total", Kind: Counter, Unit: "pieces", AtStart: "all",
					Help: "Pieces of prompts that the index had for at least one engine, whether or not that engine was chosen.",
				},
				{
					Name: "pdrouter_prefix_evicted_total", Kind: Counter, Unit: "entries", AtStart: "all",
					Help: "Entries that were evicted to make room.",
					Use:  "If evictions grow while hits fall, the index is too small.",
				},
			},
		},
	}
}
