// Package lint holds the rules of the house that neither the compiler nor golangci-lint knows: who may import whom and what must not be
// linked, as data that its tests check against the tree; that clients follow no redirects; that comments, docs/kvplane.md and pinned
// versions name what is there. What depguard, forbidigo, gochecknoinits and revive can say stands in .golangci.yml.
package lint

// Package says what one package may import.
type Package struct {
	Ours    []string // packages of this module
	Outside []string // modules from outside, by import-path prefix
}

// Packages is who may import whom. A new arrow is a one-line change here, with its reason beside it.
// Only what is compiled in counts: tests may use go-cmp and any package of ours.
func Packages() map[string]Package {
	return map[string]Package{
		"cmd/pdrouter": {
			Ours:    []string{"auth", "auth/keys", "auth/rotate", "bench", "bench/fake", "bench/harness", "bench/load", "bench/sim", "bench/simulate", "bench/suites/plane", "internal/adminapi", "internal/configfile", "internal/demo", "internal/exercise", "internal/field", "internal/gateway", "internal/gcpace", "internal/inspect", "internal/kubesecrets", "internal/overrides", "internal/refengine/process", "internal/reload", "internal/telemetry", "internal/yamlfile", "kvplane/nixl", "metadata", "policies", "router/config", "router/dispatch", "router/exchange", "router/fleet", "router/report"},
			Outside: []string{"go.yaml.in/yaml/v3", "github.com/spf13/cobra", "github.com/spf13/pflag", "golang.org/x/term"}, // cobra: the command line; term: top
		},
		// What pdrouter serve runs: it imports every part of the gateway.
		"internal/gateway": {
			Ours:    []string{"auth", "internal/adminapi", "internal/configfile", "internal/field", "internal/fleetview", "internal/limits", "internal/listener", "internal/overrides", "internal/redisdb", "internal/refusal", "internal/reload", "internal/shared", "internal/telemetry", "internal/tracing", "internal/ui", "internal/yamlfile", "kvplane/nixl", "kvplane/reclaim", "metadata", "metadata/cache", "metadata/client", "metadata/handshake", "metadata/redisstore", "metadata/routes", "metadata/store", "metadata/vllm", "policies", "router", "router/config", "router/fleet", "router/dispatch", "router/edge", "router/firsttoken", "router/fleet", "router/handoff", "router/kvevents", "router/migration", "router/reason", "router/reclaim", "router/report", "router/trace"},
			Outside: []string{"github.com/prometheus/client_golang"},
		},
		"router": {
			Ours: []string{"internal/background", "internal/disconnect", "metadata", "metadata/handshake", "policies", "policies/blocks", "policies/prefixes", "router/admission", "router/config", "router/edge", "router/exchange", "router/fanout", "router/fleet", "router/fleet/health", "router/handoff", "router/handshake", "router/kvevents", "router/kvtransfer", "router/leg", "router/migration", "router/monitor", "router/openai", "router/peers", "router/reclaim", "router/report", "router/stored", "router/tokens", "router/trace", "router/upstream"},
		},
		"router/edge": {
			Ours:    []string{"auth", "internal/disconnect", "internal/httpsyntax", "internal/nonblock", "router/admission", "router/config", "router/exchange", "router/fanout", "router/fleet", "router/leg", "router/openai", "router/reason", "router/stored", "router/trace"},
			Outside: []string{"github.com/gofiber/fiber/v2", "github.com/valyala/fasthttp"},
		},
		// What each engine protocol's legs carry and how they end. It knows no configuration: that asks it for traits.
		"router/connector": {Ours: []string{"internal/field", "metadata", "router/dispatch", "router/openai", "router/openai/answer", "router/openai/jsonscan"}},
		// What an operator can set. It asks connectors which keys their engines have.
		"router/config": {Ours: []string{"internal/field", "internal/yamlfile", "metadata", "router/connector", "router/dispatch"}},
		// What became of finished requests. kvplane/control: what its event streams say of transfers.
		"router/report": {Ours: []string{"kvplane/control", "metadata", "router/dispatch", "router/firsttoken", "router/openai", "router/trace"}},
		// Engines, models, pairs, and the selection among them.
		"router/relay":     {Ours: []string{"internal/gather", "router/firsttoken", "router/leg", "router/openai", "router/openai/answer", "router/openai/sse", "router/reason"}},
		"router/reclaim":   {Ours: []string{"internal/background", "metadata", "router/config", "router/connector", "router/dispatch", "router/fleet", "router/leg", "router/monitor", "router/openai", "router/openai/jsonscan", "router/upstream"}},
		"router/handshake": {Ours: []string{"internal/background", "metadata", "metadata/handshake", "router/config", "router/connector", "router/dispatch", "router/fleet", "router/fleet/health", "router/kvtransfer", "router/kvwatch", "router/leg", "router/monitor", "router/openai", "router/reason", "router/reclaim", "router/upstream"}},
		// Conversations' KV moved from an engine to another before it is needed there.
		"router/migration":  {Ours: []string{"internal/background", "metadata", "policies", "router/config", "router/connector", "router/dispatch", "router/fleet", "router/kvtransfer", "router/leg", "router/openai", "router/openai/jsonscan", "router/reason", "router/reclaim", "router/tokens", "router/upstream"}},
		"router/kvtransfer": {Ours: []string{"internal/background", "kvplane/control", "kvplane/ticket", "kvplane/transfer", "router/config", "router/connector", "router/fleet", "router/reason"}},
		"router/firsttoken": {Ours: []string{"router/connector", "router/openai"}},       // whether a client may get prefill's token; pure
		"router/tokens":     {Ours: []string{"router/openai", "router/openai/jsonscan"}}, // token ids of prompts, by their messages
		"router/stored":     {Ours: []string{"internal/background", "internal/httpsyntax", "router/config", "router/connector", "router/fleet", "router/leg", "router/openai", "router/openai/answer", "router/openai/jsonscan", "router/upstream"}},
		"router/exchange":   {Ours: []string{"internal/background", "internal/disconnect", "internal/gather", "metadata", "policies", "router/config", "router/connector", "router/dispatch", "router/firsttoken", "router/fleet", "router/fleet/health", "router/handoff", "router/kvtransfer", "router/kvwatch", "router/leg", "router/migration", "router/monitor", "router/openai", "router/openai/answer", "router/openai/sse", "router/reason", "router/reclaim", "router/relay", "router/report", "router/stored", "router/tokens", "router/trace", "router/upstream"}},
		"router/fanout":     {Ours: []string{"internal/disconnect", "policies", "router/dispatch", "router/exchange", "router/fleet", "router/leg", "router/openai", "router/openai/choices", "router/openai/sse", "router/reason", "router/relay", "router/report", "router/trace"}},
		"router/kvwatch":    {Ours: []string{"router/connector", "router/fleet", "router/leg", "router/monitor", "router/reason"}},
		"router/leg":        {Ours: []string{"internal/gather", "internal/httpsyntax", "policies/forecast", "router/config", "router/connector", "router/dispatch", "router/fleet", "router/fleet/health", "router/openai", "router/openai/answer", "router/openai/jsonscan", "router/openai/sse", "router/reason", "router/trace", "router/upstream"}},
		"router/fleet":      {Ours: []string{"internal/background", "metadata", "metadata/handshake", "policies", "policies/forecast", "policies/blocks", "policies/prefixes", "router/admission", "router/config", "router/connector", "router/dispatch", "router/fleet/health", "router/openai", "router/scaling", "router/tokens", "router/upstream"}},
		// What engines publish of their KV caches, into the index of blocks.
		"router/kvevents": {Ours: []string{"internal/background", "internal/zmtp", "policies/blocks", "router/config", "router/fleet", "router/kvevents/batch", "router/kvevents/stream"}},
		"router/peers":    {Ours: []string{"policies/forecast", "router/fleet"}}, // what gateways tell each other of their load
		// Active checks of engines. kvplane/control: the client of their event streams.
		"router/monitor": {Ours: []string{"internal/background", "kvplane/control", "metadata", "router/config", "router/connector", "router/fleet", "router/report", "router/upstream"}},
		// Bodies, answers and errors of each API format. gather: a body's long stretches are not copied.
		"router/openai/answer":   {Ours: []string{"router/openai/jsonscan", "router/openai/sse"}}, // reads engines' answers
		"router/openai":          {Ours: []string{"internal/gather", "internal/httpsyntax", "router/openai/answer", "router/openai/jsonscan", "router/openai/sse", "router/reason"}},
		"router/openai/choices":  {Ours: []string{"router/openai", "router/openai/answer", "router/openai/jsonscan", "router/openai/sse"}}, // merges answers
		"router/openai/jsonscan": {},                                                                                                       // a leaf: reads JSON, knows no document
		// Trace contexts, and the record of a sampled request: what the request path knows of traces.
		"router/trace":           {Ours: []string{"internal/httpsyntax"}},
		"router/reason":          {},                                                                              // a leaf: why a request was refused or failed
		"router/upstream":        {Ours: []string{"internal/gather", "internal/httpsyntax", "internal/nonblock"}}, // the HTTP client towards engines
		"router/dispatch":        {Ours: []string{"router/reason"}},                                               // the life of a request, pure
		"router/admission":       {Ours: []string{"router/reason"}},                                               // the queue in front of a model, its retry budget
		"router/fleet/health":    {},                                                                              // a leaf: pure values that take the time
		"router/kvevents/batch":  {},                                                                              // a leaf: reads what engines publish of their KV caches
		"router/kvevents/stream": {},                                                                              // a leaf: losses, restarts and replays of that stream, pure
		"router/openai/sse":      {},                                                                              // a leaf: cuts a stream into events, knows no event
		// What agents say to each other, and why it is believed; wiretest is for tests.
		"kvplane/wire":          {Ours: []string{"kvplane", "kvplane/internal/varint", "kvplane/plan", "kvplane/transfer", "kvplane/transport", "metadata"}},
		"kvplane/wire/wiretest": {Ours: []string{"kvplane/transport", "kvplane/wire", "metadata"}},
		// What an engine's scheduler and its ranks tell each other, and what all ranks report as one. kvplane/control: events for the gateway.
		"kvplane/sched": {Ours: []string{"kvplane", "kvplane/control", "kvplane/internal/alarm", "kvplane/plan", "kvplane/transfer", "metadata"}, Outside: []string{"github.com/vmihailenco/msgpack/v5"}},
		// The words of the plane. It does nothing.
		"kvplane": {Ours: []string{"kvplane/transfer", "metadata"}},
		// What becomes of transfers, pure.
		"kvplane/internal/core": {Ours: []string{"kvplane", "kvplane/internal/alarm", "kvplane/transfer", "kvplane/wire", "metadata"}},
		// One rank's end of the plane. metadata/client: peers are found through the gateway.
		"kvplane/agent": {
			Ours:    []string{"internal/field", "kvplane", "kvplane/agent", "kvplane/control", "kvplane/sched", "kvplane/internal/alarm", "kvplane/internal/core", "kvplane/internal/procid", "kvplane/memory", "kvplane/plan", "kvplane/sched", "kvplane/transfer", "kvplane/transport", "kvplane/wire", "metadata", "metadata/client"},
			Outside: []string{"golang.org/x/sys"},
		},
		// How bytes and messages move. An agent knows the interface alone; transporttest is for tests.
		"kvplane/transport":               {Ours: []string{"kvplane/memory", "kvplane/transfer", "metadata"}},
		"kvplane/transport/tcp":           {Ours: []string{"kvplane/internal/procid", "kvplane/internal/varint", "kvplane/memory/view", "kvplane/memory", "kvplane/transfer", "kvplane/transport", "metadata"}, Outside: []string{"github.com/vmihailenco/msgpack/v5", "golang.org/x/sys"}},
		"kvplane/transport/nixltransport": {Ours: []string{"kvplane/memory", "kvplane/nixl", "kvplane/transfer", "kvplane/transport", "metadata"}, Outside: []string{"github.com/vmihailenco/msgpack/v5"}},
		"kvplane/transport/byname":        {Ours: []string{"internal/field", "kvplane/nixl", "kvplane/sched", "kvplane/transport", "kvplane/transport/nixltransport", "kvplane/transport/tcp"}},
		"kvplane/transport/transporttest": {Ours: []string{"internal/cuda", "kvplane/internal/procid", "kvplane/memory", "kvplane/nixl", "kvplane/transfer", "kvplane/transport", "metadata"}, Outside: []string{"golang.org/x/sys"}},
		"kvplane/internal/alarm":          {},                                                                  // a leaf: what is due next
		"kvplane/internal/procid":         {Ours: []string{"metadata"}, Outside: []string{"golang.org/x/sys"}}, // records name processes
		"kvplane/internal/varint":         {},                                                                  // a leaf: fields of messages
		"kvplane/memory/view":             {},                                                                  // a leaf: addresses as slices
		// Memory that a transport may touch. cuda: its address.
		"kvplane/memory":        {Ours: []string{"internal/cuda", "kvplane/memory/view"}, Outside: []string{"golang.org/x/sys"}},
		"kvplane/transfer":      {},                                                                   // a leaf: the id of a transfer, its blocks, ranges of memory
		"kvplane/plan":          {Ours: []string{"kvplane/transfer", "metadata"}},                     // pure
		"kvplane/plan/plantest": {Ours: []string{"kvplane/transfer", "metadata"}},                     // for tests alone
		"kvplane/control":       {Ours: []string{"internal/refusal", "kvplane/transfer", "metadata"}}, // the gateway links it, and no agent
		// What permits one transfer: gateways sign it, engines check it.
		"kvplane/ticket": {Ours: []string{"kvplane/transfer", "metadata"}},
		// The plane for engines in other languages: what internal/refengine does for itself, and its C interface.
		"kvplane/embed": {Ours: []string{"kvplane", "kvplane/agent", "kvplane/control", "kvplane/sched", "kvplane/memory", "kvplane/memory/view", "kvplane/nixl", "kvplane/ticket", "kvplane/transfer", "kvplane/transport", "kvplane/transport/byname", "kvplane/wire", "metadata", "metadata/client", "auth", "auth/keys", "auth/records", "internal/field", "internal/yamlfile"}, Outside: []string{"golang.org/x/sys"}},
		"kvplane/capi":  {Ours: []string{"kvplane", "kvplane/agent", "kvplane/embed", "kvplane/sched", "metadata"}},
		"kvplane/nixl":  {Ours: []string{"kvplane/memory/view"}, Outside: []string{"github.com/ebitengine/purego"}},
		"internal/cuda": {Outside: []string{"github.com/ebitengine/purego"}}, // a C library opened at run time, as nixl is
		// Several parts share one Redis: what is opened once is opened in one place.
		"internal/redisdb":   {Ours: []string{"internal/field"}, Outside: []string{"github.com/redis/go-redis/v9"}},
		"internal/redistest": {},
		// What gateways tell each other through Redis, and engines that come and go.
		"internal/shared": {Ours: []string{"internal/outage", "internal/redisdb"}, Outside: []string{"github.com/redis/go-redis/v9"}},
		// Every engine of a gateway, wherever it comes from.
		"internal/fleetview": {Ours: []string{"internal/background", "internal/configfile", "internal/discovery", "internal/discovery/kubernetes", "internal/field", "internal/overrides", "router/config"}},
		// The routes of administrators and their client. router: what its engines are doing.
		"internal/adminapi": {
			Ours:    []string{"auth", "internal/configfile", "internal/fleetview", "internal/overrides", "internal/refusal", "internal/yamlfile", "metadata", "router", "router/config", "router/fleet"},
			Outside: []string{"github.com/prometheus/client_golang"},
		},
		// Secrets of a gateway in Kubernetes, which a command makes.
		"internal/kubesecrets": {Ours: []string{"auth", "auth/keys", "internal/discovery/kubernetes"}, Outside: []string{"k8s.io/apimachinery", "k8s.io/client-go"}},
		"internal/overrides":   {Ours: []string{"metadata", "router/config"}}, // what administrators want of engines
		"internal/dnstest":     {},                                            // a DNS server for tests
		// What engines say of themselves, before there is traffic.
		// pdrouter demo, whose processes are this binary's. router: what its reports are called.
		"internal/demo": {Ours: []string{"auth", "auth/keys", "internal/proc", "router", "router/report"}, Outside: []string{"github.com/spf13/cobra"}},
		// pdrouter exercise: a gateway and reference engines in one process.
		"internal/exercise":  {Ours: []string{"internal/configfile", "internal/gateway", "internal/proc", "internal/refengine", "internal/telemetry", "metadata", "router/fleet"}, Outside: []string{"github.com/spf13/cobra"}},
		"internal/stocktest": {Outside: []string{"github.com/go-zeromq/zmq4", "github.com/vmihailenco/msgpack/v5"}}, // a stock engine for tests
		"internal/listener":  {Ours: []string{"internal/field"}, Outside: []string{"golang.org/x/sys"}},             // listeners whose address may change while they serve
		// The file of pdrouter serve.
		"internal/configfile": {
			Ours:    []string{"auth", "auth/keys", "auth/records", "internal/field", "internal/limits", "internal/redisdb", "internal/reload", "internal/yamlfile", "metadata", "metadata/cache", "metadata/routes", "policies", "router/config", "router/connector"},
			Outside: []string{"go.yaml.in/yaml/v3"},
		},
		"internal/reload":    {Ours: []string{"auth/keys"}}, // credentials that are read again
		"internal/gcpace":    {},                            // a leaf: how often garbage is collected
		"internal/proc":      {},                            // a leaf: processes of this binary
		"internal/inspect":   {Ours: []string{"internal/configfile", "metadata", "metadata/vllm", "router/config", "router/connector"}},
		"internal/discovery": {Ours: []string{"internal/yamlfile"}},
		// Pods of Kubernetes. klog, logr: client-go's own log is turned off.
		"internal/discovery/kubernetes": {Outside: []string{"github.com/go-logr/logr", "k8s.io/apimachinery", "k8s.io/client-go", "k8s.io/klog/v2"}},
		"kvplane/reclaim":               {Ours: []string{"kvplane/nixl", "metadata"}}, // an agent of the gateway's own
		// A leaf: what a record is, what a store is, which engines fit.
		"metadata":        {Outside: []string{"github.com/vmihailenco/msgpack/v5"}},
		"metadata/cache":  {Ours: []string{"internal/background", "internal/field", "internal/outage", "metadata"}},                                                          // a gateway's local copy of a store
		"metadata/client": {Ours: []string{"internal/background", "metadata"}, Outside: []string{"github.com/vmihailenco/msgpack/v5"}},                                       // the engines' side of the routes
		"metadata/routes": {Ours: []string{"internal/background", "internal/field", "internal/refusal", "metadata"}, Outside: []string{"github.com/vmihailenco/msgpack/v5"}}, // a list of engines is msgpack
		"metadata/store":  {Ours: []string{"metadata"}},                                                                                                                      // the store in this process
		// Both are for tests alone.
		"metadata/routes/routestest": {Ours: []string{"internal/metadatatest", "metadata", "metadata/cache", "metadata/routes"}},
		"internal/metadatatest":      {Ours: []string{"internal/redisdb", "internal/redistest", "metadata", "metadata/redisstore", "metadata/store"}, Outside: []string{"github.com/google/go-cmp", "github.com/redis/go-redis/v9"}},
		// The store that gateways share. Engines and libpdkv.so do not link it: see TestPackagesLinkNoneOfTheUnlinked.
		"metadata/redisstore": {Ours: []string{"metadata"}, Outside: []string{"github.com/redis/go-redis/v9"}},
		"metadata/handshake":  {Ours: []string{"metadata"}}, // which pairs have shaken hands; of the records it needs the names of runs
		"metadata/vllm":       {Ours: []string{"internal/zmtp", "metadata"}, Outside: []string{"github.com/vmihailenco/msgpack/v5"}},
		// A leaf each: JSON that all readers understand alike; files that are there whole or not at all.
		"auth/internal/strictjson": {},
		"auth/internal/files":      {},
		"auth/keys": { // go-jose reads keys of every kind, and key sets
			Ours:    []string{"auth/internal/files", "auth/internal/strictjson", "internal/field"},
			Outside: []string{"github.com/go-jose/go-jose/v4"},
		},
		"auth/rotate":  {Ours: []string{"auth/internal/files", "auth/keys"}},
		"auth/records": {Ours: []string{"auth/keys"}},
		"auth": {
			Ours:    []string{"auth/internal/files", "auth/internal/strictjson", "auth/keys", "internal/field"},
			Outside: []string{"github.com/golang-jwt/jwt/v5"},
		},
		"auth/internal/keytest":  {Ours: []string{"auth/keys"}}, // both are for tests alone
		"auth/internal/authtest": {Ours: []string{"auth", "auth/keys"}},
		"internal/limits":        {Ours: []string{"internal/outage", "internal/redisdb"}, Outside: []string{"github.com/redis/go-redis/v9"}},
		// Exports the traces of requests. The only package that links OpenTelemetry.
		"internal/tracing": {
			Ours:    []string{"router/trace"},
			Outside: []string{"go.opentelemetry.io/otel", "go.opentelemetry.io/proto/otlp"},
		},
		// For tests alone: a collector.
		"internal/otlptest": {
			Outside: []string{"go.opentelemetry.io/proto/otlp", "google.golang.org/grpc", "google.golang.org/protobuf"},
		},
		"router/scaling": {}, // a leaf: how full engines are, how many are wanted
		"router/handoff": {}, // a leaf: hand-offs that are slow, and engines that compute what they should receive
		// One strict reader words the mistakes of every YAML file alike.
		"policies":                 {Ours: []string{"internal/field", "internal/yamlfile"}},
		"policies/prefixes":        {},                           // what engines are thought to have: the state that policies itself has none of
		"policies/blocks":          {},                           // what engines say that they hold
		"internal/field":           {},                           // a leaf: the error of one key of a configuration
		"policies/forecast":        {Ours: []string{"policies"}}, // learns what the policy cost prices by
		"internal/yamlfile":        {Ours: []string{"internal/field"}, Outside: []string{"go.yaml.in/yaml/v3"}},
		"bench":                    {Ours: []string{"bench/harness", "bench/suites/fair", "bench/suites/fault", "bench/suites/handover", "bench/suites/idle", "bench/suites/overhead", "bench/suites/pair", "bench/suites/plane", "bench/suites/planevllm", "bench/suites/redis", "bench/suites/replay", "bench/suites/stock", "bench/suites/stream"}}, // suites by name
		"bench/fake":               {Outside: []string{"github.com/valyala/fasthttp"}},                                                                                                                                                                                                                                                                 // engines that answer at once, and the baseline proxy
		"bench/harness":            {Ours: []string{"bench/fake", "bench/load", "bench/report", "bench/sim", "internal/proc"}, Outside: []string{"github.com/valyala/fasthttp"}},                                                                                                                                                                       // systems under test in turns, their processes, what they cost
		"bench/internal/benchtest": {Ours: []string{"bench/fake"}},                                                                                                                                                                                                                                                                                     // for tests alone
		"bench/load":               {Ours: []string{"bench/fake"}, Outside: []string{"github.com/valyala/fasthttp"}},                                                                                                                                                                                                                                   // closed and open loops, traces; it knows what fakes answer
		// The page of docs/measurements. plot: axes, bars and text of its charts as SVG; a command of its own, so that pdrouter does not link it.
		"bench/page":             {Ours: []string{"bench", "bench/harness", "bench/report"}, Outside: []string{"gonum.org/v1/plot"}},
		"bench/report":           {},                                                                                                                                                                                                           // a leaf: rows, goals, tables
		"bench/sim":              {Ours: []string{"bench/fake", "bench/load"}, Outside: []string{"github.com/valyala/fasthttp"}},                                                                                                               // modelled engines
		"bench/suites/fair":      {Ours: []string{"bench/harness", "bench/load", "bench/report", "bench/sim", "router/admission", "router/reason"}},                                                                                            // router/admission: the queue without a gateway
		"bench/simulate":         {Ours: []string{"bench/load", "bench/sim", "policies", "policies/forecast", "policies/prefixes", "router/admission", "router/config", "router/fleet", "router/migration", "router/reason", "router/tokens"}}, // what the gateway decides, replayed without sockets
		"bench/suites/fault":     {Ours: []string{"bench/fake", "bench/harness", "bench/load", "bench/report"}},
		"bench/suites/handover":  {Ours: []string{"bench/fake", "bench/harness", "bench/load", "bench/report", "bench/sim", "bench/suites/pair", "bench/suites/plane", "kvplane", "metadata/client"}, Outside: []string{"github.com/valyala/fasthttp"}},
		"bench/suites/idle":      {Ours: []string{"bench/fake", "bench/harness", "bench/load", "bench/report"}, Outside: []string{"github.com/valyala/fasthttp"}},
		"bench/suites/overhead":  {Ours: []string{"bench/fake", "bench/harness", "bench/load", "bench/report"}},
		"bench/suites/pair":      {Ours: []string{"auth", "auth/keys", "bench/fake", "bench/harness", "bench/load", "bench/report", "bench/suites/plane", "metadata", "metadata/handshake"}},
		"bench/suites/plane":     {Ours: []string{"bench/harness", "bench/load", "bench/report", "kvplane", "kvplane/agent", "kvplane/memory", "kvplane/memory/view", "kvplane/nixl", "kvplane/sched", "kvplane/transport", "kvplane/transport/nixltransport", "kvplane/transport/tcp", "metadata"}},
		"bench/suites/planevllm": {Ours: []string{"auth/keys", "bench/harness", "bench/load", "bench/report", "bench/suites/pair", "bench/suites/stock"}},
		"bench/suites/redis":     {Ours: []string{"bench/fake", "bench/harness", "bench/load", "bench/report", "internal/redisdb"}},
		"bench/suites/replay":    {Ours: []string{"bench/fake", "bench/harness", "bench/load", "bench/report", "bench/sim", "bench/simulate", "policies"}},
		"bench/suites/stock":     {Ours: []string{"bench/fake", "bench/harness", "bench/load", "bench/report", "bench/sim"}},
		"bench/suites/stream":    {Ours: []string{"bench/fake", "bench/harness", "bench/load", "bench/report"}},
		// The reference engine as a process: records, control routes, GPUs.
		"internal/refengine/process":       {Ours: []string{"auth", "auth/keys", "auth/records", "internal/configfile", "internal/cuda", "internal/field", "internal/refengine", "internal/reload", "kvplane/agent", "kvplane/control", "kvplane/memory", "kvplane/transport", "kvplane/transport/byname", "metadata", "metadata/client"}},
		"internal/refengine/refenginetest": {Ours: []string{"internal/refengine"}}, // for tests alone
		"internal/refengine": {
			Ours:    []string{"metadata", "kvplane", "kvplane/agent", "kvplane/control", "kvplane/sched", "kvplane/memory", "kvplane/ticket", "kvplane/transport"},
			Outside: []string{"github.com/valyala/fasthttp", "golang.org/x/sys"},
		},
		"internal/pdkvtest": {Ours: []string{"auth", "auth/keys", "auth/records", "kvplane", "kvplane/agent", "kvplane/ticket", "metadata", "metadata/cache", "metadata/routes", "metadata/store"}}, // a gateway and the library for tests
		// A gateway among fake engines, for tests of the whole.
		"internal/routertest": {Ours: []string{"router", "router/config", "router/connector", "router/dispatch", "router/fleet", "router/openai", "router/report", "auth", "kvplane", "kvplane/agent", "kvplane/control", "kvplane/sched", "metadata", "policies"}},
		"internal/background": {},
		"internal/outage":     {},                                      // a leaf: what fails for a while, for the log
		"internal/disconnect": {Outside: []string{"golang.org/x/sys"}}, // epoll
		"internal/gather":     {},
		"internal/talktest":   {},                                              // for tests alone: conversations
		"internal/racetest":   {},                                              // for tests alone: whether they run with the race detector
		"internal/golden":     {Outside: []string{"github.com/google/go-cmp"}}, // for tests alone: files that they compare with
		"internal/refusal":    {},                                              // a leaf: how every listener but the clients' refuses
		"internal/httpsyntax": {},                                              // a leaf: tokens, header fields, lengths
		// A leaf: the table of metrics and the registry that is made from it.
		"internal/telemetry": {Outside: []string{"github.com/prometheus/client_golang"}},
		"internal/nonblock":  {Outside: []string{"golang.org/x/sys"}},
		"internal/zmtp":      {}, // a leaf: one connection of ZeroMQ's protocol
		"internal/e2e":       {},
		"internal/faults":    {},
		"internal/ui":        {}, // a leaf: the page at /ui
		// What is written into deploy from the table of metrics.
		"internal/dashboards": {Ours: []string{"internal/telemetry"}, Outside: []string{"go.yaml.in/yaml/v3"}},
		"internal/lint":       {},
	}
}

// Unlinked is what a package must not link, by import-path prefix, not even through what it imports.
func Unlinked() map[string][]string {
	// What gateways share, and what they serve, is not the engines' concern. The gateway draws nothing.
	gateways := []string{"github.com/redis/go-redis", "pdrouter/metadata/redisstore", "pdrouter/metadata/cache", "pdrouter/metadata/routes"}
	// The request path knows neither Kubernetes nor an exporter of traces.
	outside := []string{"k8s.io", "sigs.k8s.io", "go.opentelemetry.io", "google.golang.org/grpc"}
	return map[string][]string{"cmd/pdrouter": {"gonum.org"}, "router": outside, "internal/refengine": gateways, "kvplane/embed": gateways, "kvplane/capi": gateways, "metadata": gateways}
}
