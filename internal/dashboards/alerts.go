package dashboards

import (
	"strings"

	"go.yaml.in/yaml/v3"
)

// Alert is one alert, and its entry in the runbook.
type Alert struct {
	Name     string
	Expr     string
	For      string // how long it must hold
	Severity string // critical: clients are harmed now; warning: soon, or less
	Summary  string // with the labels of the alert, as Prometheus expands them

	Means string // what is so when it fires
	Look  string // the first look
	Do    string
	Steps []string // in place of Do, where there is an order

	// Fires are series, "name{labels} values" in the notation of promtool with a value for each minute, that make it fire within 30 minutes; Quiet
	// are series that must not.
	Fires, Quiet []string
}

// Alerts returns the table of alerts.
func Alerts() []Alert {
	return []Alert{
		{
			Name: "PdrouterMissing", Expr: `absent(pdrouter_build_info)`, For: "5m", Severity: "critical",
			Summary: "No gateway is scraped.",
			Means:   "Prometheus gets metrics of no gateway. Either none runs, or Prometheus cannot read them.",
			Look:    "The targets page of Prometheus. `curl http://GATEWAY:9090/health`.",
			Do:      "If the gateway answers and the scrape gets 401, give Prometheus a token: `auth.admins` is set. Else read the gateway's log and start it.",
			Fires:   []string{`pdrouter_engine_up{engine="d"} 1x30`}, Quiet: []string{`pdrouter_build_info{version="v"} 1x30`},
		},
		{
			Name: "PdrouterErrors", For: "5m", Severity: "critical",
			Expr:    `sum by (model) (rate(pdrouter_requests_total{outcome=~"failed_before|failed_after"}[5m])) / sum by (model) (rate(pdrouter_requests_total[5m])) > 0.05`,
			Summary: "{{ $value | humanizePercentage }} of the requests for {{ $labels.model }} fail.",
			Means:   "More than 5 % of the finished requests of a model ended with an error or a cut stream.",
			Look:    "`/ui`, Recent failures, or `failures` in `/requests`. `pdrouter_routing_decisions_total` has the reasons.",
			Do:      "Find what the failed attempts share: one engine (drain it), one pair (its network), all engines (undo the last change to them). [Symptoms](operations.md#symptoms) has each status.",
			Fires:   []string{`pdrouter_requests_total{model="m",outcome="completed",status="200"} 0+90x30`, `pdrouter_requests_total{model="m",outcome="failed_before",status="502"} 0+10x30`},
			Quiet:   []string{`pdrouter_requests_total{model="m",outcome="completed",status="200"} 0+99x30`, `pdrouter_requests_total{model="m",outcome="failed_before",status="502"} 0+1x30`},
		},
		{
			Name: "PdrouterStreamsCut", For: "0m", Severity: "warning",
			Expr:    `sum by (model) (increase(pdrouter_requests_total{outcome="failed_after"}[10m])) > 0`,
			Summary: "Streams of {{ $labels.model }} were cut.",
			Means:   "Clients got a part of an answer and then an error event: a decode engine failed, stalled or was stopped while it streamed.",
			Look:    "Log lines `request` with `outcome` `failed_after`: `decode` and `reason`. `pdrouter_engine_ejections_total{reason=\"streams\"}`.",
			Do:      "Drain the decode engine if it is always the same. Let other engines [continue streams](failure-semantics.md#when-the-client-has-part-of-its-stream).",
			Fires:   []string{`pdrouter_requests_total{model="m",outcome="failed_after",status="200"} 0x10 1x20`},
			Quiet:   []string{`pdrouter_requests_total{model="m",outcome="failed_after",status="200"} 3x30`},
		},
		{
			Name: "PdrouterPanicMode", Expr: `max by (model, role) (pdrouter_panic_mode) == 1`, For: "1m", Severity: "critical",
			Summary: "Most {{ $labels.role }} engines of {{ $labels.model }} are ejected and used all the same.",
			Means:   "So many engines of a role fail that the gateway gives them requests again: the few others would be overloaded.",
			Look:    "`/ui`, Engines, or `engines` in `/status`: state and reason. `failures` in `/requests`.",
			Do:      "Treat the engines' errors. If they all began at once, undo the last change to them or to their network.",
			Fires:   []string{`pdrouter_panic_mode{model="m",role="decode"} 1x30`}, Quiet: []string{`pdrouter_panic_mode{model="m",role="decode"} 0x30`},
		},
		{
			Name: "PdrouterEngineOut", Expr: `max by (engine, state) (pdrouter_engine_state{state=~"down|open|slow"}) == 1`, For: "5m", Severity: "warning",
			Summary: "{{ $labels.engine }} is {{ $labels.state }}.",
			Means:   "An engine gets no requests, or few: it does not answer (`down`), its answers fail (`open`), or it is much slower than the others (`slow`).",
			Look:    "`/ui`, Engines, or `engines` in `/status`: the reason. The engine's own log.",
			Do:      "Restart or replace the engine. Drain it first if it still serves streams. [Engine states](operations.md#which-engines-get-requests) says when it comes back.",
			Fires:   []string{`pdrouter_engine_state{engine="d",state="down"} 1x30`}, Quiet: []string{`pdrouter_engine_state{engine="d",state="draining"} 1x30`, `pdrouter_engine_state{engine="p",state="down"} 1 1 1 stale`},
		},
		{
			Name: "PdrouterNoPair", Expr: `max(pdrouter_pairs_ready) == 0 and on () count(pdrouter_pair_ready) > 0`, For: "2m", Severity: "critical",
			Summary: "No prefill engine can hand KV to any decode engine.",
			Means:   "No pair of engines is ready at any gateway. Decode engines serve alone, or requests get 503, as `on_no_prefill` says.",
			Look:    "`/ui`, Pairs, or `pairs` in `/status`: the reason of each. `pdrouter_pair_handshakes_total` by outcome.",
			Steps: []string{
				"In haste: set `on_no_prefill: aggregate` and reload. Decode engines then serve alone.",
				"`curl -s http://GATEWAY:9090/ready | jq -c '.pairs[]'` lists the pairs that are not ready. `why` names the engine and the error.",
				"`pairable` is false: the engines do not fit. `pdrouter validate --probe -c FILE` says in what. Start both with the same weights, versions and cache settings.",
				"`… is down`: the engine's `/health` does not answer. Read its log, and start it again.",
				"`status 401`, `403` or `404`: the engine refuses the gateway. Its `bearer_token_file` is wrong, it does not know the gateway's key, or its model has another name.",
				"`pdrouter_pair_handshakes_total{outcome=\"timeout\"}` grows: an engine accepts connections and does not answer. Restart the one that `why` names.",
				"More cases are in [A pair stays cold](operations.md#a-pair-stays-cold).",
			},
			Fires: []string{`pdrouter_pairs_ready{instance="a"} 0x30`, `pdrouter_pair_ready{prefill="p",decode="d"} 0x30`},
			Quiet: []string{`pdrouter_pairs_ready{instance="a"} 0x30`, `pdrouter_pairs_ready{instance="b"} 1x30`, `pdrouter_pair_ready{prefill="p",decode="d"} 1x30`},
		},
		{
			Name: "PdrouterUnpairable", Expr: `max by (prefill, decode, reason) (pdrouter_unpairable) == 1`, For: "10m", Severity: "warning",
			Summary: "{{ $labels.prefill }} and {{ $labels.decode }} do not fit: {{ $labels.reason }}.",
			Means:   "Two engines of one model can never exchange KV as they are.",
			Look:    "The reason in [metadata.md](metadata.md#pairs).",
			Do:      "Start both with the same weights, versions and cache settings. `pdrouter validate --probe` compares them.",
			Fires:   []string{`pdrouter_unpairable{prefill="p",decode="d",reason="digest"} 1x30`}, Quiet: []string{`pdrouter_unpairable{prefill="p",decode="d",reason="digest"} 1x5 stale`},
		},
		{
			Name: "PdrouterPairEjected", Expr: `sum by (prefill, decode) (increase(pdrouter_pair_ejections_total[10m])) > 3`, For: "0m", Severity: "warning",
			Summary: "KV transfers from {{ $labels.prefill }} to {{ $labels.decode }} fail again and again.",
			Means:   "The path between two engines is bad: other pairs of the same engines may work.",
			Look:    "`pdrouter_pair_requests_total` by outcome. The NIXL or network errors in both engines' logs.",
			Do:      "Check the network between the two hosts. Drain the engine whose pairs all fail.",
			Fires:   []string{`pdrouter_pair_ejections_total{prefill="p",decode="d"} 0+1x30`}, Quiet: []string{`pdrouter_pair_ejections_total{prefill="p",decode="d"} 2x30`},
		},
		{
			Name: "PdrouterRecomputing", Expr: `max by (engine) (pdrouter_engine_recomputing) == 1`, For: "1m", Severity: "warning",
			Summary: "{{ $labels.engine }} computes prompts that it should receive.",
			Means:   "Answers are right, but each prompt is computed twice: the KV does not come, or is not used.",
			Look:    "`/ui`, What is wrong now, or `problems` in `/status`: the engine, since when, and how it was seen (`pdrouter_recomputed_prompts_total` by sign).",
			Steps: []string{
				"`curl -s http://GATEWAY:9090/requests | jq -c '.[] | select(.hand_off) | [.prefill, .decode, .hand_off]'` shows of each request how many tokens decode should have received (`expected_tokens`) and how many it counts as cached. It is empty where engines do not count: stock vLLM does with `--enable-prompt-tokens-details`.",
				"Is it one decode engine? Then it is that engine or its host. All of them? Then it is what they share: a rollout, a flag, the network.",
				"Look into the engine's log at the time of `since` for KV loads that failed. With `kv_load_failure_policy: recompute` vLLM hides them from clients.",
				"`pdrouter validate --probe -c FILE` compares weights, block size and hash seed of the engines. Start the one that differs anew, with the settings of the others.",
				"Until then, drain the engine if the others have room: `pdrouter admin engines drain NAME`, or its button on the page of `listen.admin`. Answers stay right, and come later.",
				"The signs are explained in [An engine computes prompts again](operations.md#an-engine-computes-prompts-again).",
			},
			Fires: []string{`pdrouter_engine_recomputing{engine="d"} 1x30`}, Quiet: []string{`pdrouter_engine_recomputing{engine="d"} 0x30`},
		},
		{
			Name: "PdrouterPairSlow", Expr: `max by (prefill, decode) (pdrouter_pair_slow) == 1`, For: "1m", Severity: "warning",
			Summary: "Hand-offs from {{ $labels.prefill }} to {{ $labels.decode }} are slow.",
			Means:   "Hand-offs of the pair take three times as long as they used to, and as those of other pairs of the model. Answers are right, and their first tokens come later. A pair whose decode engine recomputes is not called slow, however long its hand-offs take: that is PdrouterRecomputing.",
			Look:    "`/ui`, Pairs, or `pairs` in `/status`: `hand_off_seconds` and `times_as_long` of each pair (`pdrouter_pair_hand_off_seconds`).",
			Steps: []string{
				"`curl -s http://GATEWAY:9090/status | jq -c '.pairs[] | [.prefill, .decode, .slow, .hand_off_seconds, .times_as_long]'` tells whether this pair alone is slow, or all pairs of one of its engines.",
				"This pair alone: it is the path between the two hosts. Test it (`ping`, `iperf3`, `ib_write_bw`), and look into both engines' logs for errors of NIXL or UCX and for a transport that has changed, such as TCP in place of RDMA.",
				"All pairs of one engine: look at its host and at its queue (`load` in `engines` of `/status`), or drain it.",
				"Until then, the filter [hand_off](routing.md#compose-a-policy) gives slow pairs no requests while others are left.",
			},
			Fires: []string{`pdrouter_pair_slow{prefill="p",decode="d"} 1x30`}, Quiet: []string{`pdrouter_pair_slow{prefill="p",decode="d"} 0x30`},
		},
		{
			Name: "PdrouterPairsWaiting", Expr: `sum(pdrouter_pairs_waiting) > 0`, For: "1m", Severity: "warning",
			Summary: "Requests wait for handshakes of their engines.",
			Means:   "Requests were given to pairs that are not ready, as no ready pair was left.",
			Look:    "`pdrouter_pair_handshakes_in_flight`, `pdrouter_pair_handshakes_total` by outcome.",
			Steps: []string{
				"`curl -s http://GATEWAY:9090/ready | jq -c '.pairs[]'` lists the pairs that are not ready. `why` names the engine and the error.",
				"`pairable` is false: the engines do not fit. `pdrouter validate --probe -c FILE` says in what. Start both with the same weights, versions and cache settings.",
				"`… is down`: the engine's `/health` does not answer. Read its log, and start it again.",
				"`status 401`, `403` or `404`: the engine refuses the gateway. Its `bearer_token_file` is wrong, it does not know the gateway's key, or its model has another name.",
				"`pdrouter_pair_handshakes_total{outcome=\"timeout\"}` grows: an engine accepts connections and does not answer. Restart the one that `why` names.",
				"More cases are in [A pair stays cold](operations.md#a-pair-stays-cold).",
			},
			Fires: []string{`pdrouter_pairs_waiting 2x30`}, Quiet: []string{`pdrouter_pairs_waiting 0x30`},
		},
		{
			Name: "PdrouterQueueRefuses", Expr: `sum by (model) (increase(pdrouter_queue_denied_total{reason=~"queue_full|queue_timeout"}[5m])) > 0`, For: "5m", Severity: "critical",
			Summary: "Requests for {{ $labels.model }} get no place with its engines.",
			Means:   "More requests come than the engines finish: some are answered with 503 `queue_full` or `queue_timeout`.",
			Look:    "`/ui`, Queues, or `queues` in `/status`. `pdrouter_request_phase_duration_seconds` has the phase that is long. `pdrouter_queue_waiting_largest_tenant` tells of one tenant with most requests.",
			Do:      "Add engines of the role with the long phase. If engines are idle while all places are in use, raise `max_concurrent_requests`.",
			Fires:   []string{`pdrouter_queue_denied_total{model="m",reason="queue_full"} 0+5x30`}, Quiet: []string{`pdrouter_queue_denied_total{model="m",reason="client_left"} 0+5x30`},
		},
		{
			Name: "PdrouterQueueLong", Expr: `max by (model) (pdrouter_queue_drain_seconds) > 30 and on (model) sum by (model) (pdrouter_queue_waiting) > 0`, For: "10m", Severity: "warning",
			Summary: "New requests for {{ $labels.model }} wait about {{ $value | humanizeDuration }}.",
			Means:   "For ten minutes the queue has been longer than engines serve in 30 s.",
			Look:    "`/ui`, Queues, or `queues` in `/status`. The time of each leg in Requests, or `stage_seconds` in `/requests`.",
			Do:      "As for PdrouterQueueRefuses, before requests are refused.",
			Fires:   []string{`pdrouter_queue_drain_seconds{model="m"} 50x30`, `pdrouter_queue_waiting{model="m"} 9x30`},
			Quiet:   []string{`pdrouter_queue_drain_seconds{model="m"} 50x30`, `pdrouter_queue_waiting{model="m"} 0x30`},
		},
		{
			Name: "PdrouterObjectiveRefuses", Expr: `sum by (model) (increase(pdrouter_queue_denied_total{reason="objective"}[5m])) > 0`, For: "5m", Severity: "critical",
			Summary: "Requests for {{ $labels.model }} are refused, as they would be too late.",
			Means:   "The gateway expects that these requests miss the objective that they or the policy name, and answers 429 `objective`. It does so while more requests come than the engines can serve in time.",
			Look:    "`pdrouter_scaling_saturation_ratio` by role: above 1 the role is too full. `/ui`, Queues, or `queues` in `/status`.",
			Do:      "Add engines of the role that is full. If no role is, the objective is shorter than these prompts take on an idle engine: see `pdrouter explain`, and raise it.",
			Fires:   []string{`pdrouter_queue_denied_total{model="m",reason="objective"} 0+5x30`}, Quiet: []string{`pdrouter_queue_denied_total{model="m",reason="objective"} 7x30`, `pdrouter_queue_denied_total{model="m",reason="client_left"} 0+5x30`},
		},
		{
			Name: "PdrouterObjectiveMissed", Expr: `max by (model) (pdrouter_ttft_objective_ratio) > 1 or max by (model) (pdrouter_itl_objective_ratio) > 1`, For: "10m", Severity: "warning",
			Summary: "More than a tenth of the streams of {{ $labels.model }} miss their objective.",
			Means:   "First tokens (`pdrouter_ttft_objective_ratio`) or the tokens after them (`pdrouter_itl_objective_ratio`) come later than the policy's objective.",
			Look:    "Which of the two is above 1. `pdrouter_scaling_saturation_ratio` by role. `/ui`, Requests, or `first_token_parts` in `/requests`: the part of the time that is long.",
			Do:      "If a role is full, add engines of it: prefill for first tokens, decode for the others. If none is, one engine or pair is slow: PdrouterEngineOut, PdrouterPairSlow, PdrouterRecomputing.",
			Fires:   []string{`pdrouter_ttft_objective_ratio{model="m"} .5x30`, `pdrouter_itl_objective_ratio{model="m"} 1.3x30`},
			Quiet:   []string{`pdrouter_ttft_objective_ratio{model="m"} .9x30`, `pdrouter_itl_objective_ratio{model="m"} 1.3x5 .9x25`},
		},
		{
			Name: "PdrouterScaleBehind", For: "15m", Severity: "warning",
			Expr:    `max by (model, role) (pdrouter_scaling_desired_replicas) > on (model, role) max by (model, role) (sum by (instance, model, role) (pdrouter_scaling_replicas))`,
			Summary: "{{ $labels.model }} wants {{ $value }} {{ $labels.role }} engines and has fewer.",
			Means:   "For a quarter of an hour more engines have been wanted than there are, those that start or are down included.",
			Look:    "The autoscaler (`kubectl describe hpa` or `scaledobject`): whether it is at its maximum. Pods that wait for GPUs (`Pending`).",
			Do:      "Raise `maxReplicas`, or find room for the pods. If there is no autoscaler, add engines ([Scale](operations.md#scale)). Leave this alert out if the fleet is to stay as it is.",
			Fires:   []string{`pdrouter_scaling_desired_replicas{instance="a",model="m",role="decode"} 3x30`, `pdrouter_scaling_replicas{instance="a",model="m",role="decode",state="ready"} 1x30`, `pdrouter_scaling_replicas{instance="a",model="m",role="decode",state="out"} 1x30`},
			Quiet:   []string{`pdrouter_scaling_desired_replicas{instance="a",model="m",role="decode"} 3x30`, `pdrouter_scaling_replicas{instance="a",model="m",role="decode",state="ready"} 1x30`, `pdrouter_scaling_replicas{instance="a",model="m",role="decode",state="starting"} 2x30`},
		},
		{
			Name: "PdrouterScaleBlind", For: "15m", Severity: "warning",
			Expr:    `max by (model, role) (pdrouter_scaling_saturation_ratio) > 0 and on (model, role) min by (model, role) (pdrouter_scaling_observation_age_seconds) > 120`,
			Summary: "How full the {{ $labels.role }} engines of {{ $labels.model }} are is a guess.",
			Means:   "They have work, and for two minutes no answer has shown how fast they are. Scaling goes by speeds of before.",
			Look:    "Whether streams come to their end: only streams show how fast engines are.",
			Do:      "If clients ask for no streams, scale by another metric. Else look why no answer ends: PdrouterErrors.",
			Fires:   []string{`pdrouter_scaling_saturation_ratio{model="m",role="decode"} .6x30`, `pdrouter_scaling_observation_age_seconds{model="m",role="decode"} 0+60x30`},
			Quiet:   []string{`pdrouter_scaling_saturation_ratio{model="m",role="decode"} 0x30`, `pdrouter_scaling_observation_age_seconds{model="m",role="decode"} 0+60x30`},
		},
		{
			Name: "PdrouterRetriesRefused", Expr: `sum by (model) (increase(pdrouter_retries_total{result="refused"}[5m])) > 0`, For: "5m", Severity: "warning",
			Summary: "The retry budget of {{ $labels.model }} is used up.",
			Means:   "Attempts fail at many engines at once, and requests fail that a retry could have saved. More retries would add load to engines in trouble.",
			Look:    "`cause` of the log lines `attempt failed`.",
			Do:      "Find what the engines share: a rollout, a network. Raise `limits.retry_percent` only if they have room.",
			Fires:   []string{`pdrouter_retries_total{model="m",result="refused"} 0+1x30`}, Quiet: []string{`pdrouter_retries_total{model="m",result="made"} 0+1x30`},
		},
		{
			Name: "PdrouterKVLeaks", Expr: `sum(increase(pdrouter_kv_leaks_total[10m])) > 0`, For: "10m", Severity: "warning",
			Summary: "Requests leave KV blocks with engines.",
			Means:   "Ended requests left blocks that nothing freed yet. A prefill engine frees them when a lease ends; a decode engine with push may need a restart.",
			Look:    "`/ui`, Engines, KV cache, or `leaked_blocks` of `engines` in `/status`. The log line `blocks stay held` names transfer and engines.",
			Do:      "Prefill's blocks come back when their lease ends. If NIXL's library is missing on the gateway's host, install it: the gateway then frees them sooner. If decode's stay and it runs out of KV cache, drain it and restart it. [What stock engines hold](operations.md#what-stock-engines-hold-after-a-request) has each cause.",
			Fires:   []string{`pdrouter_kv_leaks_total 0+1x30`}, Quiet: []string{`pdrouter_kv_leaks_total 7x30`},
		},
		{
			Name: "PdrouterKVEventsMissing", Expr: `min by (engine) (pdrouter_kv_events_connected) == 0 and on (engine) max by (engine) (pdrouter_engine_up) == 1`, For: "5m", Severity: "warning",
			Summary: "{{ $labels.engine }} serves and publishes no KV events.",
			Means:   "Routing by prefix estimates what this engine has cached. Answers are right, and slower if it is wrong.",
			Look:    "`kv_events` of the engine in the configuration, and its `--kv-events-config`.",
			Do:      "Correct the address. A firewall between gateway and engine looks the same.",
			Fires:   []string{`pdrouter_kv_events_connected{engine="p"} 0x30`, `pdrouter_engine_up{engine="p"} 1x30`},
			Quiet:   []string{`pdrouter_kv_events_connected{engine="p"} 0x30`, `pdrouter_engine_up{engine="p"} 0x30`},
		},
		{
			Name: "PdrouterSourceStale", Expr: `max by (model, list) (pdrouter_source_stale) == 1`, For: "5m", Severity: "warning",
			Summary: "The engines of {{ $labels.model }} ({{ $labels.list }}) are those of a while ago.",
			Means:   "DNS, the file or the cluster that names the engines cannot be read. The gateway keeps the engines that it knows.",
			Look:    "`/ui`, What is wrong now, or `problems` in `/status`: the source and the error. The log line of the source has it too.",
			Do:      "Repair the source: the DNS name, the file, or the gateway's right to list pods. Nothing needs a restart. [Engines that come and go](operations.md#engines-that-come-and-go) has each kind of source.",
			Fires:   []string{`pdrouter_source_stale{model="m",list="prefill"} 1x30`}, Quiet: []string{`pdrouter_source_stale{model="m",list="prefill"} 0x30`},
		},
		{
			Name: "PdrouterConfigRefused", Expr: `max by (instance) (pdrouter_config_refused) == 1`, For: "5m", Severity: "warning",
			Summary: "{{ $labels.instance }} refuses its configuration file.",
			Means:   "The file has a mistake, or changes a key that needs a restart. The configuration before stays in use. A restart would fail.",
			Look:    "`/ui`, or `config.mistakes` in `/status`, shows the mistakes; so does the log, with lines.",
			Do:      "Correct the file. `pdrouter validate -c FILE` checks it.",
			Fires:   []string{`pdrouter_config_refused{instance="a"} 1x30`}, Quiet: []string{`pdrouter_config_refused{instance="a"} 0x30`},
		},
		{
			Name: "PdrouterConfigsDiffer", Expr: `count(count by (digest) (pdrouter_config_info)) > 1`, For: "15m", Severity: "warning",
			Summary: "The gateways have different configuration files.",
			Means:   "A change reached some gateways and not others. If they serve different fleets on purpose, leave this alert out.",
			Look:    "`pdrouter_config_info` by instance. PdrouterConfigRefused.",
			Do:      "Bring the file to all gateways. Check that no rollout hangs.",
			Fires:   []string{`pdrouter_config_info{digest="x"} 1x30`, `pdrouter_config_info{digest="y"} 1x30`}, Quiet: []string{`pdrouter_config_info{digest="x",instance="a"} 1x30`, `pdrouter_config_info{digest="x",instance="b"} 1x30`},
		},
		{
			Name: "PdrouterMetadataBehind", Expr: `max by (instance) (pdrouter_metadata_behind == 1 or pdrouter_peers_behind == 1)`, For: "1m", Severity: "warning",
			Summary: "{{ $labels.instance }} cannot exchange with Redis.",
			Means:   "Redis does not answer this gateway, or refuses its writes. Requests go on from its copy until the leases end, 30 s after their last renewal. Meanwhile it counts limits alone, and does not know the load of other gateways.",
			Look:    "`/ui`, What is wrong now, or `redis` in `/status`: Redis's address (`at`). Log lines with the field `redis` have the address and the error.",
			Steps: []string{
				"Is Redis down, or is this gateway's way to it cut? `curl -s http://GATEWAY:9090/status | jq .redis` at each gateway: `reached` says whether it exchanges with Redis. `pdrouter_metadata_behind` says the same by instance. `redis-cli -h HOST -p PORT PING` from this gateway's host, and from another one, says it without pdrouter.",
				"No gateway reaches it: start Redis again. It may be empty. All is back within 10 s, and nothing needs a restart.",
				"Others reach it: the error in the log says what it is. `connection refused`, `EOF` or a timeout: network, NetworkPolicy, firewall or a proxy between the two. `NOAUTH` or `WRONGPASS`: `password_file`. `NOPERM`: an ACL, which `redis-cli ACL LOG` names. `OOM`: Redis's memory is full. `READONLY`: it is a replica. `x509`: a certificate.",
				"Do not restart this gateway meanwhile: it would begin without records. If it serves badly after 30 s, take it out of the load balancer.",
				"[Redis in production](metadata.md#redis-in-production) has each kind of failure.",
			},
			Fires: []string{`pdrouter_metadata_behind{instance="a"} 0x30`, `pdrouter_peers_behind{instance="a"} 1x30`},
			Quiet: []string{`pdrouter_metadata_behind{instance="a"} 0x30`, `pdrouter_peers_behind{instance="a"} 0x30`},
		},
		{
			Name: "PdrouterLimitsAlone", Expr: `max by (instance) (pdrouter_limits_alone) == 1`, For: "5m", Severity: "warning",
			Summary: "{{ $labels.instance }} counts tenants' use alone.",
			Means:   "Usage is not exchanged through Redis, so a tenant may use its limit once at each gateway.",
			Look:    "`redis` in `/status`, at each gateway. Log lines with the field `redis` have the address and the error.",
			Do:      "The steps of PdrouterMetadataBehind. No request fails for this.",
			Fires:   []string{`pdrouter_limits_alone{instance="a"} 1x30`}, Quiet: []string{`pdrouter_limits_alone{instance="a"} 0x30`},
		},
		{
			Name: "PdrouterKeySetStale", Expr: `max by (audience, issuer) (pdrouter_jwks_stale) == 1`, For: "1m", Severity: "critical",
			Summary: "Tokens of {{ $labels.issuer }} for {{ $labels.audience }} get 503.",
			Means:   "The issuer's key set is too old to be trusted, so its tokens are refused. API keys and other issuers go on.",
			Look:    "The log line `jwks: no keys to believe`.", Steps: []string{
				"From the gateway's host, check that the issuer's `url` answers 200 with a key set, with its `ca_file` and `token_file`.",
				"If that cannot be repaired soon, put the last known key set into a file and set `url` to its path. Run `pdrouter validate`, then restart one gateway after the other.",
			},
			Fires: []string{`pdrouter_jwks_stale{audience="pdrouter",issuer="i"} 1x30`}, Quiet: []string{`pdrouter_jwks_stale{audience="pdrouter",issuer="i"} 0x30`},
		},
		{
			Name: "PdrouterForeignReports", Expr: `sum(increase(pdrouter_foreign_reports_total[10m])) > 0`, For: "0m", Severity: "warning",
			Summary: "An engine reports transfers that are not its own, or that cannot be.",
			Means:   "An engine is faulty or hostile. Its reports are ignored.",
			Look:    "The engines whose version or build differs from the others.", Do: "Drain the engine, and replace its token and keys if you cannot explain it.",
			Fires: []string{`pdrouter_foreign_reports_total 0x10 2x20`}, Quiet: []string{`pdrouter_foreign_reports_total 2x30`},
		},
		{
			Name: "PdrouterForeignWrites", Expr: `sum by (what) (increase(pdrouter_shared_refused_total[10m])) > 0`, For: "0m", Severity: "critical",
			Summary: "Entries in Redis about {{ $labels.what }} are not signed by a gateway.",
			Means:   "Another program writes to the gateways' keys in Redis, or a gateway's key is not trusted by the others.",
			Look:    "The log names the first entry.", Do: "Restrict who may write to Redis. Check `auth.records.trusted` at all gateways.",
			Fires: []string{`pdrouter_shared_refused_total{what="engines"} 0x10 2x20`}, Quiet: []string{`pdrouter_shared_refused_total{what="engines"} 2x30`},
		},
		{
			Name: "PdrouterPanics", Expr: `sum by (instance) (increase(pdrouter_background_panics_total[1h])) > 0`, For: "0m", Severity: "warning",
			Summary: "A background task of {{ $labels.instance }} panicked.",
			Means:   "A bug of pdrouter. The task was restarted and requests go on.",
			Look:    "The log has the stack.", Do: "Report it with the stack and the version.",
			Fires: []string{`pdrouter_background_panics_total{instance="a"} 0x10 1x20`}, Quiet: []string{`pdrouter_background_panics_total{instance="a"} 1x30`},
		},
	}
}

// made begins every file that this package makes.
const made = "Written by `go test ./internal/telemetry -update` from internal/dashboards."

// Rules returns the alerts as a file of rules for Prometheus.
func Rules() (string, error) {
	type rule struct {
		Alert       string
		Expr        string
		For         string            `yaml:",omitempty"`
		Labels      map[string]string `yaml:"labels"`
		Annotations struct {
			Summary     string `yaml:"summary"`
			Description string `yaml:"description"`
			Runbook     string `yaml:"runbook_url"`
		}
	}
	type group struct {
		Name  string
		Rules []rule
	}
	g := group{Name: "pdrouter"}
	for _, a := range Alerts() {
		r := rule{Alert: a.Name, Expr: a.Expr, For: a.For, Labels: map[string]string{"severity": a.Severity}}
		r.Annotations.Summary, r.Annotations.Description, r.Annotations.Runbook = a.Summary, a.Means, "docs/runbook.md#"+strings.ToLower(a.Name)
		g.Rules = append(g.Rules, r)
	}
	var b strings.Builder
	b.WriteString("# " + made + "\n# runbook_url is a path in pdrouter's repository: put before it where you keep the documentation.\n")
	to := yaml.NewEncoder(&b)
	to.SetIndent(2)
	err := to.Encode(map[string][]group{"groups": {g}})
	return b.String(), err
}
