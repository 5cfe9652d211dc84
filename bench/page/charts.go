package main

import (
	"fmt"
	"strings"

	"pdrouter/bench/report"
)

// chart is a drawing of groups of bars.
type chart struct {
	File   string // "cpu-per-request.svg"
	Title  string
	About  string   // Markdown: what is measured, and what the bars are
	Suites []string // whose reports it shows
	axis   string   // the title of the vertical axis, with its unit
	groups []group
}

// group is bars that stand together.
type group struct {
	label string
	bars  []bar
}

// bar is a figure of one system.
type bar struct {
	series
	report.Spread
}

// series is a system under test: the name that reports give it, the one in the legend, and its colour in all charts.
type series struct {
	of, label string
	colour    colour
}

// The systems of the charts.
var (
	gateway    = series{"pdrouter", "pdrouter", blue}
	baseline   = series{report.Baseline, "baseline proxy", grey}
	vllmRouter = series{"vllm-router", "vllm-router", orange}
	smg        = series{"smg", "smg", green}
	sglRouter  = series{"sglang-router", "sglang-router", pink}
	nginx      = series{"nginx", "nginx", yellow}
	haproxy    = series{"haproxy", "HAProxy", sky}
	plane      = series{"pdrouter", "pdrouter's plane", blue}
	nixlPush   = series{"NixlPushConnector", "NixlPushConnector", orange}
	answered   = series{"pdrouter", "answered", blue}
	failed     = series{"", "failed", orange}
	byPrefix   = series{"prefix", "prefix", blue}
	leastLoad  = series{"least_load", "least load", orange}
	powerOfTwo = series{"power_of_two", "power of two", green}
	roundRobin = series{"round_robin", "round robin", pink}
)

// source is a row of a report.
type source struct{ suite, name, what, where string }

// charts are those of the page.
func (p *page) charts() ([]chart, error) {
	var missing error
	// read returns the bars of a row, without those of systems that have no figure in it.
	read := func(label string, from source, systems ...series) group {
		row, err := p.row(from)
		if err != nil {
			missing = err
			return group{}
		}
		g := group{label: label}
		for _, s := range systems {
			for _, f := range append([]report.Figure{row.Ours}, row.Beside...) {
				if f.Of == s.of && f.Cannot == "" {
					g.bars = append(g.bars, bar{s, f.Spread})
				}
			}
		}
		return g
	}
	all := []chart{
		cpuPerRequest(read), cpuPerToken(read), addedLatency(read), handOff(read), faults(read), replay(read),
	}
	return all, missing
}

// row finds a row.
func (p *page) row(from source) (report.Row, error) {
	r, err := p.report(from.suite)
	if err != nil {
		return report.Row{}, err
	}
	for _, row := range r.Rows {
		if row.Name == from.name && row.What == from.what && (from.where == "" || row.Where == from.where) {
			return row, nil
		}
	}
	return report.Row{}, fmt.Errorf("%s has no row %q, %q", from.suite, from.name, from.what)
}

// reader turns a row into a group of bars.
type reader func(label string, from source, systems ...series) group

func cpuPerRequest(read reader) chart {
	c := chart{
		File: "cpu-per-request.svg", Title: "CPU per request", axis: "CPU time per request, µs",
		About: "CPU time of the gateway for a request of two legs with `vllm-nixl-pull`, by the size of the prompt: 32 connections with 1 and 16 KB, 16 with 220 KB. The engines answer at once. Each system has a CPU of its own. Less is better.",
	}
	for _, size := range []struct{ suite, label, connections string }{{"1k", "1 KB", "c=32"}, {"16k", "16 KB", "c=32"}, {"220k", "220 KB", "c=16"}} {
		suite := "overhead/cpu-" + size.suite
		c.Suites = append(c.Suites, suite)
		c.groups = append(c.groups,
			read(size.label, source{suite: suite, name: "pull " + size.connections, what: "CPU a request"}, gateway, vllmRouter, smg),
			read(size.label+", stream", source{suite: suite, name: "pull " + size.connections + " stream", what: "CPU a request"}, gateway, vllmRouter, smg))
	}
	return c
}

func cpuPerToken(read reader) chart {
	from := source{suite: "stream/token", name: "100 streams, a token each 5ms", what: "CPU a token"}
	c := chart{
		File: "cpu-per-token.svg", Title: "CPU per streamed token", axis: "CPU time per token, µs", Suites: []string{from.suite},
		About: "CPU time for each token of 100 streams, each with a token every 5 ms. nginx and HAProxy relay one leg and read none of it. Less is better.",
	}
	for _, s := range []series{gateway, baseline, nginx, haproxy} {
		c.groups = append(c.groups, read(s.label, from, s))
	}
	return c
}

func addedLatency(read reader) chart {
	c := chart{
		File: "added-latency.svg", Title: "Added latency, one connection", axis: "added to a request of 1 KB, µs", Suites: []string{"overhead/latency"},
		About: "Time of a request of 1 KB through the system, less the time of a client that makes both legs itself. One connection, everything on one CPU, engines that answer at once. Less is better.",
	}
	for _, connector := range []string{"pull", "push", "sglang"} {
		for _, percentile := range []string{"p50", "p99"} {
			from := source{suite: "overhead/latency", name: connector + " c=1", what: percentile + " added"}
			c.groups = append(c.groups, read(connector+", "+percentile, from, gateway, baseline, vllmRouter, smg, sglRouter))
		}
	}
	return c
}

func handOff(read reader) chart {
	c := chart{
		File: "hand-off.svg", Title: "Hand-off between two vLLM engines", axis: "prefill's answer to first event, ms", Suites: []string{"plane/vllm"},
		About: "Time from the last byte of prefill's answer until the client has decode's first event. Two engines of vLLM 0.32.0 (CPU build) hand over by pdrouter's plane over tcp, or by `NixlPushConnector`. Prefill has one CPU and decode another, and all threads of an engine share its CPU. Less is better.",
	}
	for _, tokens := range []string{"513 tokens", "1825 tokens"} {
		from := source{suite: "plane/vllm", name: "hand-off, " + tokens, what: "prefill's answer to first event"}
		c.groups = append(c.groups, read("prompt of "+tokens, from, plane, nixlPush))
	}
	return c
}

func faults(read reader) chart {
	c := chart{
		File: "faults.svg", Title: "Requests whose first prefill leg fails", axis: "requests, %", Suites: []string{"fault/cost"},
		About: "Of the requests whose first prefill leg fails, the part that the client gets answered with status 200, and the part that fails. One of two prefill engines refuses connections, resets them, or answers 500. More answers are better.",
	}
	for _, fault := range []struct{ row, label string }{{"refused", "connection refused"}, {"reset", "connection reset"}, {"500", "status 500"}} {
		g := read(fault.label, source{suite: "fault/cost", name: "prefill fails: " + fault.row, what: "answered 200"}, answered)
		for _, b := range g.bars {
			g.bars = append(g.bars, bar{failed, report.Spread{Min: 100 - b.Max, Median: 100 - b.Median, Max: 100 - b.Min}})
		}
		c.groups = append(c.groups, g)
	}
	return c
}

func replay(read reader) chart {
	c := chart{
		File: "replay-goodput.svg", Title: "Replay goodput by policy (simulated)", axis: "requests in time, 1/s", Suites: []string{"replay/mooncake"},
		About: "Simulated: pdrouter's policies choose among four modelled engines, in the engines' own time, without a gateway and without sockets. The workload has the shape of Mooncake's trace, at 1.5 requests per second. A request is in time with TTFT ≤ 2 s and TPOT ≤ 50 ms. More is better.",
	}
	for _, fleet := range []string{"3P1D", "2P2D", "1P3D", "aggregated"} {
		from := source{suite: "replay/mooncake", name: fleet + ", prefix, 1.5/s", what: "goodput", where: "engines alone"}
		c.groups = append(c.groups, read(fleet, from, byPrefix, leastLoad, powerOfTwo, roundRobin))
	}
	return c
}

// Command prints the chart's figures again.
func (c chart) Command() string { return "bin/pdrouter bench " + strings.Join(c.Suites, " ") }
