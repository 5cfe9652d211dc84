package config

import (
	"fmt"
	"time"

	"pdrouter/internal/yamlfile"
)

// Timeouts are the router's waits. Zero means the default. In the file a 0 is refused, except for keep_alive.
type Timeouts struct {
	Connect      time.Duration `yaml:"connect"`       // dialling an engine; default 2s
	Read         time.Duration `yaml:"read"`          // a client's head and body; default 30s
	Idle         time.Duration `yaml:"idle"`          // a client's connection between two requests; default 75s
	Write        time.Duration `yaml:"write"`         // how long a client may take to read 64 KiB of an answer, or one event of a stream; default 30s
	Request      time.Duration `yaml:"request"`       // arrival to first token of a stream, all attempts together; default 120s
	RequestTotal time.Duration `yaml:"request_total"` // arrival to an answer that is not streamed, all attempts together; default 600s
	Queue        time.Duration `yaml:"queue"`         // a request's wait in the queue of its model; default 10s
	Prefill      time.Duration `yaml:"prefill"`       // one prefill leg; default 60s
	Transfer     time.Duration `yaml:"transfer"`      // from prefill's answer to decode's first token, or to the arrival of the KV where that is reported for an answer that is not streamed; default 10s
	StreamIdle   time.Duration `yaml:"stream_idle"`   // between two events of one stream; default 120s
	Pair         time.Duration `yaml:"pair"`          // a request's wait for the handshake of its pair; default 30s
	Probe        time.Duration `yaml:"probe"`         // one handshake or probe, off the request path; default 60s
	Cleanup      time.Duration `yaml:"cleanup"`       // a leg that continues after its request has ended; default 60s
	// KeepAlive is the longest silence of a stream. Then the gateway sends a comment, which clients skip. 0 sends none; default 15s.
	KeepAlive           *time.Duration `yaml:"keep_alive"`
	Drain               time.Duration  `yaml:"drain"`                 // requests in flight at shutdown; default 30s
	ResponseAffinityTTL time.Duration  `yaml:"response_affinity_ttl"` // for how long the gateway remembers which engine holds a stored response; default 24h
	// Background is the longest time for which a background response of /v1/responses counts against its caller's limits. Then what
	// was reserved for it is charged. Default 1h.
	Background time.Duration `yaml:"background"`
	// PreStopDelay is from SIGTERM until the clients' listener closes. /ready and /readyz return 503 from the start of this time, so that
	// load balancers can send requests elsewhere. It is skipped if neither was ever requested. Default 5s.
	PreStopDelay time.Duration `yaml:"pre_stop_delay"`
	Health       time.Duration `yaml:"health"` // between two health checks of an engine; default 2s
	// SideChannel is the interval between two checks of a stock engine's side channel, and the time limit of each, which is at least 1s; default 5s.
	SideChannel time.Duration `yaml:"side_channel"`
}

func (t Timeouts) withDefaults() Timeouts {
	setDefault(&t.Connect, 2*time.Second)
	setDefault(&t.Read, 30*time.Second)
	setDefault(&t.Idle, 75*time.Second)
	setDefault(&t.Write, 30*time.Second)
	setDefault(&t.Request, 120*time.Second)
	setDefault(&t.RequestTotal, 600*time.Second)
	setDefault(&t.Queue, 10*time.Second)
	setDefault(&t.Prefill, 60*time.Second)
	setDefault(&t.Transfer, 10*time.Second)
	setDefault(&t.StreamIdle, 120*time.Second)
	setDefault(&t.Pair, 30*time.Second)
	setDefault(&t.Probe, 60*time.Second)
	setDefault(&t.Cleanup, 60*time.Second)
	setDefault(&t.Drain, 30*time.Second)
	if t.KeepAlive == nil {
		every := 15 * time.Second
		t.KeepAlive = &every
	}
	setDefault(&t.ResponseAffinityTTL, 24*time.Hour)
	setDefault(&t.Background, time.Hour)
	setDefault(&t.PreStopDelay, 5*time.Second)
	setDefault(&t.Health, 2*time.Second)
	setDefault(&t.SideChannel, 5*time.Second)
	return t
}

func (t Timeouts) validate(v *faults) {
	for _, f := range []struct {
		key string
		d   time.Duration
	}{
		{"connect", t.Connect}, {"read", t.Read}, {"idle", t.Idle}, {"write", t.Write}, {"request", t.Request}, {"request_total", t.RequestTotal},
		{"queue", t.Queue}, {"prefill", t.Prefill}, {"transfer", t.Transfer}, {"stream_idle", t.StreamIdle}, {"pair", t.Pair}, {"probe", t.Probe},
		{"cleanup", t.Cleanup}, {"drain", t.Drain}, {"response_affinity_ttl", t.ResponseAffinityTTL}, {"background", t.Background}, {"pre_stop_delay", t.PreStopDelay}, {"health", t.Health},
		{"side_channel", t.SideChannel},
		{"keep_alive", *t.KeepAlive},
	} {
		if f.d < 0 {
			v.add("timeouts."+f.key, "is "+f.d.String(), "more than 0")
		}
	}
}

// Limits are the router's bounds. Zero of an int, or nil, means the default. In the file a 0 is refused, except for pointers.
type Limits struct {
	Body yamlfile.Size `yaml:"body"` // the largest request body; default 32MiB
	// BodyMemory is how many bytes all request bodies, and their copies for engines, may use at once. A request whose body does not
	// fit is answered 503. So is a request of a tenant whose bodies use half of this already. At least twice limits.body; default 1GiB, or twice limits.body if that is more.
	BodyMemory yamlfile.Size `yaml:"body_memory"`
	Answer     yamlfile.Size `yaml:"answer"`   // the largest answer that is not streamed; a larger one is 502 answer_too_large; default 64MiB
	Event      yamlfile.Size `yaml:"event"`    // the largest server-sent event; a larger one is 502 answer_too_large; default 4MiB
	Attempts   int           `yaml:"attempts"` // dispatches of one request; 1 for no retries; default 3
	// MaxConcurrentRequests is how many requests of a model may be with its engines at once, for each decode engine that takes requests. A
	// model's own max_concurrent_requests replaces it. Default 1024, which is more than an engine runs at a time.
	MaxConcurrentRequests int `yaml:"max_concurrent_requests"`
	// Queue is how many requests of a model may wait while max_concurrent_requests is reached. 0: none waits, and such a request is refused at
	// once. Default 1024.
	Queue *int `yaml:"queue"`
	// RetryPercent is how many of 100 requests of a model may be retried, within ten seconds. A retry is not counted if no engine
	// has begun with the request (a refused connection, 429, 503), or if decode alone takes the place of a prefill engine. 0: no
	// more than retry_floor. Default 20.
	RetryPercent *int `yaml:"retry_percent"`
	// RetryFloor is how many retries of a model are allowed in ten seconds, whatever retry_percent says. If this and retry_percent are 0, the budget
	// allows none. Default 10, enough to retry each request that a failing engine gets at a low rate until its circuit opens.
	RetryFloor         *int `yaml:"retry_floor"`
	Failures           int  `yaml:"failures"`             // failed connections and health checks in a row that make an engine unusable; a refused connection does at once; default 2
	N                  int  `yaml:"n"`                    // choices of one request; default 16
	Prompts            int  `yaml:"prompts"`              // prompts in one body; default 64
	MaxParallelChoices int  `yaml:"max_parallel_choices"` // choices of one request that are served at once, each by a hand-off of its own; a request with more is served by decode alone; default 16
	Stop               int  `yaml:"stop"`                 // stop strings of one request; engines accept any number and look for each at every token. Default 128
	Logprobs           int  `yaml:"logprobs"`             // logprobs and top_logprobs; default 20
	Recent             int  `yaml:"recent"`               // finished requests kept for /requests; default 256
	Background         int  `yaml:"background"`           // legs that continue after their requests have ended, over all engines; also background responses that count against limits; default 1024
	Concurrent         int  `yaml:"concurrent"`           // client connections at once; default 65536
	IdlePer            int  `yaml:"idle_engine"`          // idle connections kept per engine; default 256
	// PrefixIndexEntries is how many pieces of prompts the gateway remembers, with the engines that received them, for models with
	// a policy that looks at prefixes. A piece takes 40 bytes of memory, and 8 more for each 64 engines above the first 64; where engines
	// say how large their caches are, 40 more for each engine that has it, at most 160. At most 100 million; default 262144 (10 MB, with these at
	// most 52 MB), for 4 million tokens of short prompts or 30 million of long ones.
	PrefixIndexEntries int `yaml:"prefix_index_entries"`
	// KVIndexBlocks is how many KV blocks the gateway remembers, each counted for every engine that has it, for engines with kv_events. A block
	// takes up to 100 bytes of memory. Past the bound, blocks that engines store are not remembered until others are removed. At most 100
	// million; default 1048576 (100 MB), for 16 million tokens in blocks of 16. The token ids of prompts of such engines, which the gateway
	// learns from prefill's answers (vllm-nixl-pull), take at most 64 bytes more for each.
	KVIndexBlocks int `yaml:"kv_index_blocks"`
	// Handshakes is how many handshakes of pairs may run at once, over all engines. A quarter of them, at least one if there are
	// several, is reserved for pairs that requests wait for. Default 16.
	Handshakes int `yaml:"handshakes"`
	// HandshakesPerEngine is how many of them may be with one engine. A quarter is reserved in the same way. Default 4.
	HandshakesPerEngine int `yaml:"handshakes_per_engine"`
}

// mostEntries bounds each index: that of prefixes takes 4 GB of memory then, that of blocks 10 GB.
const mostEntries = 100_000_000

func (l Limits) withDefaults() Limits {
	setDefault(&l.Body, 32<<20)
	setDefault(&l.BodyMemory, max(1<<30, 2*l.Body))
	setDefault(&l.Answer, 64<<20)
	setDefault(&l.Event, 4<<20)
	setDefault(&l.Attempts, 3)
	setDefault(&l.MaxConcurrentRequests, 1024)
	setDefault(&l.Queue, new(1024))
	setDefault(&l.RetryPercent, new(20))
	setDefault(&l.RetryFloor, new(10))
	setDefault(&l.Failures, 2)
	setDefault(&l.N, 16)
	setDefault(&l.Prompts, 64)
	setDefault(&l.MaxParallelChoices, 16)
	setDefault(&l.Stop, 128)
	setDefault(&l.Logprobs, 20)
	setDefault(&l.Recent, 256)
	setDefault(&l.Background, 1024)
	setDefault(&l.Concurrent, 65536)
	setDefault(&l.IdlePer, 256)
	setDefault(&l.PrefixIndexEntries, 1<<18)
	setDefault(&l.KVIndexBlocks, 1<<20)
	setDefault(&l.Handshakes, 16)
	setDefault(&l.HandshakesPerEngine, 4)
	return l
}

func (l Limits) validate(v *faults) {
	for _, f := range []struct {
		key string
		n   int
	}{
		{"body", int(l.Body)}, {"body_memory", int(l.BodyMemory)}, {"answer", int(l.Answer)}, {"event", int(l.Event)}, {"attempts", l.Attempts}, {"failures", l.Failures},
		{"max_concurrent_requests", l.MaxConcurrentRequests}, {"queue", *l.Queue}, {"retry_percent", *l.RetryPercent}, {"retry_floor", *l.RetryFloor},
		{"n", l.N}, {"prompts", l.Prompts}, {"max_parallel_choices", l.MaxParallelChoices}, {"stop", l.Stop}, {"logprobs", l.Logprobs}, {"recent", l.Recent},
		{"background", l.Background}, {"concurrent", l.Concurrent}, {"idle_engine", l.IdlePer},
		{"prefix_index_entries", l.PrefixIndexEntries}, {"kv_index_blocks", l.KVIndexBlocks}, {"handshakes", l.Handshakes}, {"handshakes_per_engine", l.HandshakesPerEngine},
	} {
		if f.n < 0 {
			v.add("limits."+f.key, fmt.Sprintf("is %d", f.n), "more than 0")
		}
	}
	if l.BodyMemory >= 0 && l.BodyMemory < 2*l.Body { // a body and what is copied of it fit
		v.add("limits.body_memory", fmt.Sprintf("is %d", l.BodyMemory), fmt.Sprintf("at least twice limits.body, %d", 2*l.Body))
	}
	for _, f := range []struct {
		key string
		n   int
	}{{"prefix_index_entries", l.PrefixIndexEntries}, {"kv_index_blocks", l.KVIndexBlocks}} {
		if f.n > mostEntries {
			v.add("limits."+f.key, fmt.Sprintf("is %d", f.n), fmt.Sprintf("at most %d", mostEntries))
		}
	}
}

// setDefault sets what is not set to its default.
func setDefault[T comparable](at *T, v T) {
	var zero T
	if *at == zero {
		*at = v
	}
}

// SideChannelAnswer is the time limit of one request to a side channel: at least 1 s, so that a busy engine has time even if checks are frequent.
func (t Timeouts) SideChannelAnswer() time.Duration { return max(t.SideChannel, time.Second) }
