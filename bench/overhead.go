package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"time"
)

// Config says how to measure.
type Config struct {
	Binary string        // pdrouter itself: gateway, floor and fakes are processes of it
	Pairs  int           // rounds of floor and gateway per row; default 6
	Round  time.Duration // of one measurement; default 2s
	Others float64       // CPUs that may be busy with something else during a round; default 0.10
	Refuse int           // rounds of a row that may be repeated because of that; default 40
	Log    string        // the gateway's log level; default info: a line a request, to the null device
	Only   string        // rows whose name contains it; default all
}

func (c Config) withDefaults() Config {
	if c.Pairs == 0 {
		c.Pairs = 6
	}
	if c.Round == 0 {
		c.Round = 2 * time.Second
	}
	if c.Others == 0 {
		c.Others = maxOthers
	}
	if c.Refuse == 0 {
		c.Refuse = 40
	}
	if c.Log == "" {
		c.Log = "info"
	}
	return c
}

// Row is one line of the report: a load, and what the floor and the gateway used for it.
type Row struct {
	Name        string  `json:"name"`
	Connector   string  `json:"connector"`
	Stream      bool    `json:"stream"`
	Connections int     `json:"connections"`
	BodyBytes   int     `json:"body_bytes"`
	View        string  `json:"view"`
	Floor       Figures `json:"floor"`
	Gateway     Figures `json:"gateway"`
	Ratio       Spread  `json:"ratio"`   // gateway over floor, pair by pair
	Refused     int     `json:"refused"` // rounds repeated because the machine was busy
}

// Figures is what one target used and did.
type Figures struct {
	MicrosPerRequest Spread    `json:"cpu_us_per_request"`
	PerSecond        Spread    `json:"requests_per_second"`
	Requests         int       `json:"requests"`
	Rounds           []float64 `json:"rounds_cpu_us"`
}

// overheadRows are the rows of overhead/cpu-1k.
func overheadRows() []Row {
	const oneCPU, ownCPU = "everything on one CPU", "target on a CPU of its own"
	return []Row{
		{Name: "pull c=1", Connector: "vllm-nixl-pull", Connections: 1, BodyBytes: 1024, View: oneCPU},
		{Name: "pull c=32", Connector: "vllm-nixl-pull", Connections: 32, BodyBytes: 1024, View: ownCPU},
		{Name: "pull c=32 stream", Connector: "vllm-nixl-pull", Connections: 32, BodyBytes: 1024, View: ownCPU, Stream: true},
		{Name: "push c=1", Connector: "vllm-nixl-push", Connections: 1, BodyBytes: 1024, View: oneCPU},
		{Name: "push c=32", Connector: "vllm-nixl-push", Connections: 32, BodyBytes: 1024, View: ownCPU},
	}
}

// errVoid marks a run whose counts were wrong.
var errVoid = errors.New("void")

// Overhead measures the CPU time a two-leg request of 1 KB costs the gateway, beside the floor, in front of engines
// that answer at once. It prints its progress and a table to out.
func Overhead(ctx context.Context, cfg Config, out io.Writer) (*Report, error) {
	cfg = cfg.withDefaults()
	cpus, err := allowedCPUs()
	if err != nil {
		return nil, err
	}
	r := &Report{Suite: "overhead/cpu-1k", Machine: machine(len(cpus)), Versions: versions(), Log: cfg.Log}
	r.Settings = fmt.Sprintf("%d pairs of rounds of %s", cfg.Pairs, cfg.Round)
	fmt.Fprintf(out, "%s: CPU time of the gateway and of the floor for one two-leg request; %s\n", r.Suite, r.Settings)
	for _, row := range overheadRows() {
		if !strings.Contains(row.Name, cfg.Only) {
			continue
		}
		fmt.Fprintf(out, "  %-18s ", row.Name)
		if err := cfg.measure(ctx, &row, cpus, out); err != nil {
			fmt.Fprintln(out)
			return nil, fmt.Errorf("bench: %s: %w", row.Name, err)
		}
		fmt.Fprintf(out, " ×%.2f\n", row.Ratio.Median)
		r.Rows = append(r.Rows, row)
	}
	fmt.Fprintln(out)
	r.table(out)
	return r, nil
}

// places says which CPUs the target and the rest run on; "" where they cannot be bound.
func places(view string, cpus []int) (target, rest string) {
	if !canPin() {
		return "", ""
	}
	first, last := strconv.Itoa(cpus[0]), strconv.Itoa(cpus[len(cpus)-1])
	if strings.HasPrefix(view, "everything") {
		return last, last
	}
	return last, first
}

// measure fills one row.
func (c Config) measure(ctx context.Context, row *Row, cpus []int, out io.Writer) error {
	target, rest := places(row.View, cpus)
	if rest != "" {
		if err := pinSelf(ctx, rest); err != nil {
			return err
		}
	}
	s, err := c.stage(ctx, row, target, rest)
	if err != nil {
		return err
	}
	defer s.stop()
	l := load{connections: row.Connections, body: chatBody(row.BodyBytes, row.Stream), stream: row.Stream}
	for which := range s.targets { // the first requests open connections and fill caches
		if _, err := s.round(ctx, which, l, 300*time.Millisecond); err != nil {
			return err
		}
	}
	figures := [2]*Figures{&row.Floor, &row.Gateway}
	var micros, rates [2][]float64
	for i := range micros {
		micros[i], rates[i] = make([]float64, c.Pairs), make([]float64, c.Pairs)
	}
	for _, at := range schedule(c.Pairs) {
		for {
			got, err := s.round(ctx, at.target, l, c.Round)
			if err != nil {
				return err
			}
			if got.others > c.Others || got.steal > maxSteal {
				if row.Refused++; row.Refused > c.Refuse {
					return fmt.Errorf("the machine is too busy: %d rounds were refused, the last because others used %.2f CPUs and %.2f were stolen", row.Refused, got.others, got.steal)
				}
				fmt.Fprint(out, "r")
				continue
			}
			fmt.Fprint(out, ".")
			micros[at.target][at.pair] = got.micros
			rates[at.target][at.pair] = got.rate
			figures[at.target].Requests += got.requests
			break
		}
	}
	for i, f := range figures {
		f.MicrosPerRequest, f.PerSecond, f.Rounds = spread(micros[i]), spread(rates[i]), micros[i]
	}
	row.Ratio = ratios(micros[0], micros[1])
	return nil
}

// gatewayText is the gateway's configuration file in a run.
func (c Config) gatewayText(connector, clients, operations, prefill, decode string) string {
	return fmt.Sprintf(`listen: {clients: %q, operations: %q}
log: {level: %s}
models:
  - name: %s
    connector: %s
    prefill: [{name: prefill-0, url: "http://%s"}]
    decode: [{name: decode-0, url: "http://%s"}]
`, clients, operations, c.Log, benchModel, connector, prefill, decode)
}

// writeTemp writes text to a file of its own and returns its path.
func writeTemp(text string) (string, error) {
	f, err := os.CreateTemp("", "pdrouter-bench-*.yaml")
	if err != nil {
		return "", err
	}
	_, err = f.WriteString(text)
	return f.Name(), errors.Join(err, f.Close())
}
