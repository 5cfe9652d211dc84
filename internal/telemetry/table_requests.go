package telemetry

// requests are the metrics of clients' requests and of the process that serves them.
func requests() []Subject {
	return []Subject{
		{
			Title: "Requests",
			Intro: "An admitted request is counted when it ends. A request that is refused earlier is counted in `pdrouter_refusals_total` alone.",
			Metrics: []Metric{
				{
					Name: "pdrouter_requests_total", Kind: Counter, Unit: "requests", Labels: []string{"model", "route", "outcome", "status"},
					AtStart: "each model and each route that generates text: completed and failed_after with 200, client_left with 200 and 499, failed_before with 500, 502, 503 and 504",
					Help:    "Finished requests by outcome (completed, client_left, failed_before, failed_after) and HTTP status.",
					Use:     "The error rate is the share of failed_before and failed_after. Any failed_after is worth an alert: the client got part of an answer.",
				},
				{
					Name: "pdrouter_routing_decisions_total", Kind: Counter, Unit: "requests", Labels: []string{"model", "reason"},
					AtStart: "each model, with the reasons of failures and of the policy",
					Help:    "Finished requests by the reason why they were split or not, or why they failed.",
					Use:     "Shows why requests are not disaggregated. errors.md explains each reason.",
				},
				{
					Name: "pdrouter_shadow_decisions_total", Kind: Counter, Unit: "requests", Labels: []string{"model", "result"},
					Help: "Finished requests by what policy.shadow would have chosen: the same engines, others (other_prefill, other_decode), a split in place of one engine or the reverse (other_path), or no engine (none).",
					Use:  "Shows how a policy differs from the present one before it is used.",
				},
				{
					Name: "pdrouter_attempts_total", Kind: Counter, Unit: "attempts", Labels: []string{"model"}, AtStart: "each model",
					Help: "Attempts to serve a request, retries included.",
					Use:  "Alert if it grows faster than pdrouter_requests_total.",
				},
				{
					Name: "pdrouter_retries_total", Kind: Counter, Unit: "requests", Labels: []string{"model", "result"}, AtStart: "all",
					Help: "Retries that were started (made), and requests that failed because the retry budget was exhausted (refused).",
					Use:  "If refused grows, many engines fail at once.",
				},
				{
					Name: "pdrouter_continuations_total", Kind: Counter, Unit: "streams", Labels: []string{"model", "result"}, AtStart: "all",
					Help: "Streams whose decode engine failed and that the policy wants another engine to continue: done, failed, unsupported.",
				},
				{
					Name: "pdrouter_pair_requests_total", Kind: Counter, Unit: "requests", Labels: []string{"model", "prefill", "decode", "outcome"},
					Help: "Finished requests by the engines of the last attempt. The label prefill is empty if the decode engine served alone.",
					Use:  "Shows whether failures belong to one pair.",
				},
				{
					Name: "pdrouter_tokens_total", Kind: Counter, Unit: "tokens", Labels: []string{"model", "kind"}, AtStart: "all",
					Help: "Prompt, cached and output tokens, as the engines count them.",
				},
				{
					Name: "pdrouter_predicted_cached_tokens_total", Kind: Counter, Unit: "tokens", Labels: []string{"model", "by"}, AtStart: "all",
					Help: "Cached tokens that a policy predicted for the engine that computes the prompt: by events, which the engine publishes, or by estimate. Only requests whose engine counted them.",
				},
				{
					Name: "pdrouter_counted_cached_tokens_total", Kind: Counter, Unit: "tokens", Labels: []string{"model", "by"}, AtStart: "all",
					Help: "Cached tokens of the same prompts as their engines counted them.",
				},
				{
					Name: "pdrouter_mispredicted_cached_tokens_total", Kind: Counter, Unit: "tokens", Labels: []string{"model", "by"}, AtStart: "all",
					Help: "The sum over the same requests of the difference of both, never below 0.",
					Use:  "Divided by pdrouter_counted_cached_tokens_total it is the error of the predictions. That by events should be near 0; if it is not, engines render prompts in another way than before, or evict blocks while requests wait.",
				},
				{
					Name: "pdrouter_prompt_token_ids_total", Kind: Counter, Unit: "requests", Labels: []string{"model", "result"}, AtStart: "each model, forwarded",
					Help: "Split requests by whether decode was sent the token ids of the prompt that prefill has answered (forwarded) or rendered and tokenised the prompt itself: off, route, media, prompt_text, refused, not_reported, too_large.",
					Use:  "If not_reported or refused grows for chats, the prefill engine is too old. vllm.md explains each result.",
				},
				{
					Name: "pdrouter_first_tokens_total", Kind: Counter, Unit: "requests", Labels: []string{"model", "result"}, AtStart: "each model, prefill",
					Help: "Split requests of models with first_token: prefill, by whether the client got the token that prefill has sampled (prefill), or why it did not: not_streamed, body, no_token_ids, engines, block, text.",
					Use:  "If engines grows, the engines cannot do it, or do not serve /metrics. vllm.md explains each result.",
				},
				{
					Name: "pdrouter_client_transfer_params_total", Kind: Counter, Unit: "requests", Labels: []string{"model"}, AtStart: "each model",
					Help: "Requests from which the client's own kv_transfer_params were removed.",
				},
				{
					Name: "pdrouter_refusals_total", Kind: Counter, Unit: "requests", Labels: []string{"status", "reason"},
					AtStart: "each reason for which requests are not admitted",
					Help:    "Requests that were refused before they were admitted.",
					Use:     "The page errors.md explains each reason.",
				},
				{
					Name: "pdrouter_requests_in_flight", Kind: Gauge, Unit: "requests",
					Help: "Requests in progress.",
				},
				{
					Name: "pdrouter_background_responses", Kind: Gauge, Unit: "responses",
					Help: "Background responses that count against the limits of their callers. limits.background bounds them.",
				},
				{
					Name: "pdrouter_request_body_bytes", Kind: Gauge, Unit: "bytes",
					Help: "Memory that request bodies occupy. limits.body_memory bounds it.",
					Use:  "At the bound, requests are refused with 503 body_memory.",
				},
			},
		},
		{
			Title: "Latency",
			Intro: "All times are in seconds.",
			Metrics: []Metric{
				{
					Name: "pdrouter_time_to_first_token_seconds", Kind: Histogram, Unit: "seconds", Labels: []string{"model", "role", "engine"},
					Help: "Time from the arrival of a request to the first event of the decode engine.",
					Use:  "With role=\"decode\" each request is counted once. Requests that were split are counted again with role=\"prefill\".",
				},
				{
					Name: "pdrouter_request_phase_duration_seconds", Kind: Histogram, Unit: "seconds", Labels: []string{"model", "phase"}, AtStart: "each model",
					Help: "Duration of each phase of a request: admit, queue, retry, plan, pair, prefill, transfer, first_token, join, stream. A request counts only in the phases that it reached.",
					Use:  "Shows which phase makes requests slow. The phases up to first_token add up to the time to the first token; operations.md says what each contains.",
				},
			},
		},
		{
			Title: "Queues and limits",
			Intro: "Each model has one queue. Tenants are never labels: there can be too many of them, and their names are private.",
			Metrics: []Metric{
				{
					Name: "pdrouter_queue_in_flight", Kind: Gauge, Unit: "requests", Labels: []string{"model"},
					Help: "Requests that have a place with the engines of the model.",
				},
				{
					Name: "pdrouter_queue_places", Kind: Gauge, Unit: "requests", Labels: []string{"model"},
					Help: "Requests that may have a place with the engines of the model at the same time.",
				},
				{
					Name: "pdrouter_queue_waiting", Kind: Gauge, Unit: "requests", Labels: []string{"model"},
					Help: "Requests that wait for a place.",
					Use:  "If requests wait while pdrouter_queue_in_flight is at pdrouter_queue_places, add engines.",
				},
				{
					Name: "pdrouter_queue_waiting_tenants", Kind: Gauge, Unit: "tenants", Labels: []string{"model"},
					Help: "Tenants with requests that wait for a place. With queue.order fifo all requests count as those of one tenant.",
				},
				{
					Name: "pdrouter_queue_waiting_largest_tenant", Kind: Gauge, Unit: "requests", Labels: []string{"model"},
					Help: "Requests that wait for a place, of the tenant with the most.",
					Use:  "If it is nearly pdrouter_queue_waiting, one tenant has more requests than its share of the places.",
				},
				{
					Name: "pdrouter_predicted_first_token_error_ratio", Kind: Gauge, Unit: "ratio", Labels: []string{"model"},
					Help: "By which part the time to the first token differs from what the policy cost predicted, in the mean of recent streams; 0.2 before the first.",
					Use:  "Above 0.5 the policy cost chooses by numbers that do not hold: see /requests, predicted_seconds.",
				},
				{
					Name: "pdrouter_queue_drain_seconds", Kind: Gauge, Unit: "seconds", Labels: []string{"model"},
					Help: "Predicted time until all requests that wait and one more have a place, at most 60 s. Retry-After of queue_full is made of it. 0: no request has ended yet.",
				},
				{
					Name: "pdrouter_queue_waited_total", Kind: Counter, Unit: "requests", Labels: []string{"model"}, AtStart: "all",
					Help: "Requests that had to wait for a place.",
				},
				{
					Name: "pdrouter_queue_denied_total", Kind: Counter, Unit: "requests", Labels: []string{"model", "reason"}, AtStart: "all",
					Help: "Requests that got no place: queue_full, queue_timeout, objective, client_left, shutdown.",
				},
				{
					Name: "pdrouter_rate_limited_total", Kind: Counter, Unit: "requests", Labels: []string{"limit"}, AtStart: "all",
					Help: "Requests that were refused because a tenant exceeded a limit.",
				},
				{
					Name: "pdrouter_limits_tenants", Kind: Gauge, Unit: "tenants",
					Help: "Tenants whose usage is tracked now.",
				},
				{
					Name: "pdrouter_limits_exchange_failures_total", Kind: Counter, Unit: "exchanges", AtStart: "all",
					Help: "Exchanges of usage through Redis that failed.",
				},
				{
					Name: "pdrouter_limits_alone", Kind: Gauge, Unit: "boolean",
					Help: "1 while usage cannot be exchanged with other gateways, so that this gateway counts alone.",
					Use:  "Check Redis.",
				},
			},
		},
		{
			Title: "Process and configuration",
			Intro: "The metrics `go_*` and `process_*` of the Prometheus client library are exported too.",
			Metrics: []Metric{
				{
					Name: "pdrouter_build_info", Kind: Gauge, Unit: "info", Labels: []string{"version", "commit", "go_version"},
					Help: "Always 1. The labels name the version of pdrouter, its commit (empty if the build has no VCS data) and the version of Go.",
				},
				{
					Name: "pdrouter_config_reloads_total", Kind: Counter, Unit: "reloads", Labels: []string{"result"}, AtStart: "all",
					Help: "Reloads of the configuration: applied or refused.",
				},
				{
					Name: "pdrouter_config_refused", Kind: Gauge, Unit: "boolean",
					Help: "1 while the configuration file has errors and the previous configuration stays in use.",
					Use:  "The log names each error with its line.",
				},
				{
					Name: "pdrouter_config_applied_timestamp_seconds", Kind: Gauge, Unit: "seconds",
					Help: "Unix time at which the configuration in use was applied.",
				},
				{
					Name: "pdrouter_config_info", Kind: Gauge, Unit: "info", Labels: []string{"digest"},
					Help: "Always 1. The label is a digest of the configuration file in use.",
					Use:  "All gateways with the same file have the same digest.",
				},
				{
					Name: "pdrouter_trace_spans_total", Kind: Counter, Unit: "spans", Labels: []string{"result"}, AtStart: "all, with tracing",
					Help: "Spans of traced requests: exported to the collector; dropped, as too many wait to be sent or one request has too many; or failed, as the collector is away, does not answer within 10 s or refuses them. Only with tracing.",
					Use:  "If failed grows, see the log line \"traces are not exported\". If dropped grows, sample fewer requests.",
				},
				{
					Name: "pdrouter_background_panics_total", Kind: Counter, Unit: "panics", AtStart: "all",
					Help: "Panics of background tasks. Each task was restarted.",
					Use:  "Each one is a bug of pdrouter. The log has the stack.",
				},
			},
		},
	}
}
