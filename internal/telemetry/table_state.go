package telemetry

// state are the metrics of what the gateway knows from others: discovery, metadata, other gateways, and keys.
func state() []Subject {
	return []Subject{
		{
			Title: "Discovery of engines",
			Intro: "A list of engines can have a DNS name or a file as its source. Administrators can add engines on `listen.admin`.",
			Metrics: []Metric{
				{
					Name: "pdrouter_source_engines", Kind: Gauge, Unit: "engines", Labels: []string{"model", "list", "source"},
					Help: "Engines of the list by where they come from: static, dns, file, kubernetes or admin.",
				},
				{
					Name: "pdrouter_source_failures_total", Kind: Counter, Unit: "reads", Labels: []string{"model", "list"}, AtStart: "all",
					Help: "Times the source of the list could not be read or used.",
				},
				{
					Name: "pdrouter_source_age_seconds", Kind: Gauge, Unit: "seconds", Labels: []string{"model", "list"},
					Help: "Time since the source was last read successfully. Missing before the first time.",
				},
				{
					Name: "pdrouter_source_stale", Kind: Gauge, Unit: "boolean", Labels: []string{"model", "list"},
					Help: "1 while the source is not trusted: a DNS name without a valid answer for longer than max_stale, a file that is invalid, or a Kubernetes API that cannot be watched.",
					Use:  "The engines of a stale name are drained. For a file or pods of Kubernetes what was known last stays in use.",
				},
				{
					Name: "pdrouter_source_refused_addresses", Kind: Gauge, Unit: "addresses", Labels: []string{"model", "list"},
					Help: "Addresses of the last DNS answer that allow does not include.",
				},
				{
					Name: "pdrouter_source_changes_failed_total", Kind: Counter, Unit: "changes", AtStart: "all",
					Help: "Changes of engines that could not be applied. They are retried.",
				},
				{
					Name: "pdrouter_admin_requests_total", Kind: Counter, Unit: "requests", Labels: []string{"action", "status"},
					AtStart: "each action, with the statuses 200, 401 and 403",
					Help:    "Requests to listen.admin by action and HTTP status.",
				},
			},
		},
		{
			Title: "Scaling",
			Intro: "What autoscalers go by ([operations](operations.md#scale)). A role is prefill or decode, or " +
				"engines where these do both. With `metadata.store: redis` each gateway counts the load of all, so take `max` over gateways.",
			Metrics: []Metric{
				{
					Name: "pdrouter_scaling_desired_replicas", Kind: Gauge, Unit: "engines", Labels: []string{"model", "role"},
					Help: "Engines that are wanted: by the saturation in the mean of 45 s, more above 0.55, at most twice as many as there are; one less below 0.40; never below 1. Data-parallel ranks of one engine count once.",
					Use:  "Scale the role by it.",
				},
				{
					Name: "pdrouter_scaling_saturation_ratio", Kind: Gauge, Unit: "ratio", Labels: []string{"model", "role"},
					Help: "How full the engines of the role are now; 1 if they just keep the objective. It is the highest of: seconds of prompts given in a second, seconds of prompts that wait over the objective of TTFT, the room between tokens that is used up, and 1.1 of the KV cache's part in use. The series is missing while no engine serves.",
					Use:  "Aim at 0.5.",
				},
				{
					Name: "pdrouter_scaling_backlog_seconds", Kind: Gauge, Unit: "seconds", Labels: []string{"model", "role"},
					Help: "Time that an engine of the role needs, in the mean, for the prompts that it has yet to compute and for its part of those in the queue.",
				},
				{
					Name: "pdrouter_scaling_observation_age_seconds", Kind: Gauge, Unit: "seconds", Labels: []string{"model", "role"},
					Help: "Time since it was last seen from answers how fast an engine of the role is. Missing before the first time.",
					Use:  "A saturation above 0 is a guess if this is missing or above 120.",
				},
				{
					Name: "pdrouter_scaling_replicas", Kind: Gauge, Unit: "engines", Labels: []string{"model", "role", "state"},
					Help: "Engines of the role as scaling counts them: ready, starting (capacity for more only) or out (down or ejected). Engines that drain are not counted.",
				},
				{
					Name: "pdrouter_ttft_objective_ratio", Kind: Gauge, Unit: "ratio", Labels: []string{"model"},
					Help: "90th percentile of the time to the first token of streams in the last minute, over the policy's objective; at most 15 % too high, at most 19. Missing if there were none.",
					Use:  "Above 1, more than a tenth of the streams begin too late.",
				},
				{
					Name: "pdrouter_itl_objective_ratio", Kind: Gauge, Unit: "ratio", Labels: []string{"model"},
					Help: "90th percentile of the mean time between tokens of streams that ended in the last minute, over the policy's objective, likewise. Clients that read slowly count too.",
				},
			},
		},
		{
			Title: "Metadata",
			Intro: "Engines publish records in a store. Each gateway works from a local copy of it.",
			Metrics: []Metric{
				{
					Name: "pdrouter_metadata_engines", Kind: Gauge, Unit: "engines",
					Help: "Engines with a record that has not expired.",
				},
				{
					Name: "pdrouter_metadata_age_seconds", Kind: Gauge, Unit: "seconds",
					Help: "Time since the whole store was last read. Missing before the first time.",
				},
				{
					Name: "pdrouter_metadata_behind", Kind: Gauge, Unit: "boolean",
					Help: "1 while the store cannot be read and the last valid copy is used.",
					Use:  "Alert after a minute: check Redis.",
				},
				{
					Name: "pdrouter_metadata_records_read_total", Kind: Counter, Unit: "records", AtStart: "all",
					Help: "New records that were fetched, decoded and checked.",
				},
				{
					Name: "pdrouter_metadata_read_failures_total", Kind: Counter, Unit: "reads", AtStart: "all",
					Help: "Reads of the store that failed.",
				},
				{
					Name: "pdrouter_metadata_subscriptions_total", Kind: Counter, Unit: "subscriptions", AtStart: "all",
					Help: "Subscriptions to the announcements of the store. Each one after the first replaced a lost one.",
				},
				{
					Name: "pdrouter_metadata_subscription_failures_total", Kind: Counter, Unit: "subscriptions", AtStart: "all",
					Help: "Subscriptions that failed, were lost, or missed an announcement.",
					Use:  "While it grows, the gateway learns of changes only from the periodic read of the store.",
				},
				{
					Name: "pdrouter_metadata_quarantined_total", Kind: Counter, Unit: "values", AtStart: "all, with a store in Redis",
					Help: "Values in Redis that were ignored because they are invalid or not signed by a trusted key.",
					Use:  "Alert above 0: another program writes to Redis, or a key is not trusted.",
				},
				{
					Name: "pdrouter_metadata_watches", Kind: Gauge, Unit: "streams",
					Help: "Open streams of GET /metadata/v1/watch.",
				},
				{
					Name: "pdrouter_metadata_watch_syncs_total", Kind: Counter, Unit: "syncs", Labels: []string{"reason"}, AtStart: "all",
					Help: "Times the readers of watches had to read everything again: store (the local copy became complete) or slow_reader.",
				},
				{
					Name: "pdrouter_agent_refusals_total", Kind: Counter, Unit: "requests", Labels: []string{"status", "reason"},
					AtStart: "the refusals of credentials, stale records and an unavailable store",
					Help:    "Requests to the metadata routes that were refused.",
					Use:     "Alert if it grows: an engine has wrong credentials.",
				},
			},
		},
		{
			Title: "Shared state of gateways",
			Intro: "Gateways share through Redis which engine holds a stored response, what administrators changed, and what each has at the engines.",
			Metrics: []Metric{
				{
					Name: "pdrouter_peers", Kind: Gauge, Unit: "gateways",
					Help: "Other gateways whose load is known. Only gateways with metadata.store: redis have this series and the next two.",
					Use:  "Alert if it is not the number of the other replicas: choices do not count their load.",
				},
				{
					Name: "pdrouter_peers_behind", Kind: Gauge, Unit: "boolean",
					Help: "1 while load cannot be exchanged with other gateways. What they had counts until 3 s after they said it.",
				},
				{
					Name: "pdrouter_peers_failures_total", Kind: Counter, Unit: "exchanges", AtStart: "all, with a store in Redis",
					Help: "Exchanges of load that failed.",
				},
				{
					Name: "pdrouter_shared_responses", Kind: Gauge, Unit: "responses",
					Help: "Stored responses whose engine this gateway knows.",
				},
				{
					Name: "pdrouter_shared_waiting", Kind: Gauge, Unit: "entries",
					Help: "Entries about stored responses that are not yet written to Redis.",
				},
				{
					Name: "pdrouter_shared_behind", Kind: Gauge, Unit: "boolean",
					Help: "1 while these entries cannot be written to Redis.",
				},
				{
					Name: "pdrouter_shared_failures_total", Kind: Counter, Unit: "operations", AtStart: "all",
					Help: "Reads and batches of writes of these entries that failed.",
				},
				{
					Name: "pdrouter_shared_dropped_total", Kind: Counter, Unit: "entries", AtStart: "all",
					Help: "Entries that were dropped, so that no other gateway knows of them.",
				},
				{
					Name: "pdrouter_shared_late_total", Kind: Counter, Unit: "responses", AtStart: "all",
					Help: "Answers that were sent before the other gateways could know of their stored response.",
				},
				{
					Name: "pdrouter_shared_refused_total", Kind: Counter, Unit: "entries", Labels: []string{"what"}, AtStart: "all",
					Help: "Entries in Redis that were ignored because no gateway signed them, about responses, engines or load.",
					Use:  "Alert above 0: another program writes to Redis. The log names the first entry.",
				},
			},
		},
		{
			Title: "Keys and credentials",
			Intro: "An issuer is named by the audience and the issuer of its tokens.",
			Metrics: []Metric{
				{
					Name: "pdrouter_jwks_keys", Kind: Gauge, Unit: "keys", Labels: []string{"audience", "issuer"},
					Help: "Usable keys of the issuer's key set. 0 before its first valid answer.",
				},
				{
					Name: "pdrouter_jwks_age_seconds", Kind: Gauge, Unit: "seconds", Labels: []string{"audience", "issuer"},
					Help: "Time since the issuer's last valid answer. Missing before the first.",
					Use:  "Alert above half of the issuer's max_stale.",
				},
				{
					Name: "pdrouter_jwks_stale", Kind: Gauge, Unit: "boolean", Labels: []string{"audience", "issuer"},
					Help: "1 while the issuer's key set is too old to be trusted.",
					Use:  "Alert at once: requests with its tokens get 503.",
				},
				{
					Name: "pdrouter_jwks_fetches_total", Kind: Counter, Unit: "fetches", Labels: []string{"audience", "issuer"}, AtStart: "all",
					Help: "Fetches of the issuer's key set.",
				},
				{
					Name: "pdrouter_jwks_fetch_failures_total", Kind: Counter, Unit: "fetches", Labels: []string{"audience", "issuer"}, AtStart: "all",
					Help: "Fetches without a valid answer.",
				},
				{
					Name: "pdrouter_credentials_reload_failures_total", Kind: Counter, Unit: "reloads", AtStart: "all",
					Help: "Reloads of key files that failed completely or in part.",
				},
				{
					Name: "pdrouter_credentials_reload_age_seconds", Kind: Gauge, Unit: "seconds",
					Help: "Time since all key files could be read.",
					Use:  "Above 30, the log line \"credentials: not all could be read again\" names the file.",
				},
			},
		},
	}
}
