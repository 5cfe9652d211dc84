package main

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"pdrouter/bench/report"
)

// limit is why some aims are not reached.
type limit struct {
	Title  string
	aims   string // a regular expression of "SUITE: ROW FIGURE: AIM"
	Reason string // Markdown
}

// limited is a limit and the aims that are not reached because of it.
type limited struct {
	limit
	Missed []string // Markdown, one for each suite and aim
}

// limits explains each aim that is not reached by the first limit that fits. A limit without such an aim is an error, and an aim
// without a limit, too.
func (p *page) limits(known []limit) ([]limited, error) {
	all := make([]limited, len(known))
	groups := make([][]*missed, len(known))
	var failed error
	for _, s := range p.Measured() {
		for _, row := range s.Report.Rows {
			for _, g := range row.Goals {
				if g.Met != "no" {
					continue
				}
				aim := fmt.Sprintf("%s: %s: %s", s.Name, strings.TrimSpace(row.Name+" "+row.What), g.Goal)
				i := slices.IndexFunc(known, func(l limit) bool { return regexp.MustCompile(l.aims).MatchString(aim) })
				if i < 0 {
					failed = errors.Join(failed, fmt.Errorf("limits.go does not say why this aim is not reached: %s", aim))
					continue
				}
				groups[i] = add(groups[i], s.Name, row, g)
			}
		}
	}
	for i, l := range known {
		all[i].limit = l
		for _, m := range groups[i] {
			all[i].Missed = append(all[i].Missed, m.String())
		}
		if groups[i] == nil {
			failed = errors.Join(failed, fmt.Errorf("limits.go: no aim is missed for the reason %q", l.Title))
		}
	}
	return all, failed
}

// missed is an aim of a suite's that several rows do not reach.
type missed struct {
	suite, aim string
	rows       []string
	unit       string // of the figures; "" is ratios
	figures    []float64
}

// add adds a row that does not reach an aim to those that do not reach it either.
func add(all []*missed, suite string, row report.Row, g report.Reached) []*missed {
	figure, unit := row.Ours.Median, row.Unit
	for _, f := range row.Beside {
		if f.Of == g.Beside && f.Ratio != nil {
			figure, unit = f.Ratio.Median, ""
		}
	}
	i := slices.IndexFunc(all, func(m *missed) bool { return m.suite == suite && m.aim == g.Goal && m.unit == unit })
	if i < 0 {
		i, all = len(all), append(all, &missed{suite: suite, aim: g.Goal, unit: unit})
	}
	all[i].rows = append(all[i].rows, row.Name)
	all[i].figures = append(all[i].figures, figure)
	return all
}

// String is a line of the page.
func (m *missed) String() string {
	rows := fmt.Sprintf("%d figures are", len(m.figures))
	if len(m.figures) == 1 {
		rows = m.rows[0] + " is"
	}
	figures := number(slices.Min(m.figures))
	if largest := number(slices.Max(m.figures)); largest != figures {
		figures += " to " + largest
	}
	if m.unit == "" {
		return fmt.Sprintf("`%s`, aim %s: %s at a ratio of %s", m.suite, m.aim, rows, figures)
	}
	return fmt.Sprintf("`%s`, aim %s: %s at %s %s", m.suite, m.aim, rows, figures, m.unit)
}

// knownLimits are those of the page. The reasons are of profiles of the runs (perf, strace) on the machine of the page.
func knownLimits() []limit {
	return []limit{
		{
			"CPU of a request beside the baseline proxy", `^overhead/cpu-.* baseline proxy$`,
			"With 1 KB and 32 connections, half of the CPU time is the system calls that the baseline makes, too: three writes and the reads. Of the rest, 8 % scans JSON, 8 % is the HTTP server, 4 % allocates, and 18 % is the life of a request, in which no function has 1 %. To reach the aim, a request has to reuse the state of an earlier one (half of what is allocated), and the system calls of the three connections have to be batched, which Go's poller does not do.",
		},
		{
			"A third of the best peer's CPU", `^overhead/cpu-.* best peer$`,
			"With 1 and 16 KB the reasons are those of the aim above. With 220 KB and sglang a tenth of the CPU time scans JSON, and a fifth is new buffers for bodies: engines that answer at once often answer the decode leg before the prefill leg ends, and a body's buffer is in use until both legs have ended.",
		},
		{
			"Added latency", `^overhead/latency: `,
			"With one connection and everything on one CPU, the added time is CPU time and switches between processes. pdrouter has fewer switches for a request than the baseline, 3.0 and 5.2. What remains is CPU time, for the reasons above. 5 % of it is counters and the log line, which could wait until the answer is written if the server reported that.",
		},
		{
			"System calls of a request", `^overhead/syscalls: `,
			"Three writes and three reads move the bytes. In addition there are 0.7 reads by which Go's poller learns that the client has sent no more, one read for each engine's connection that finds out whether it is still open, and 0.2 writes of the log. A stream's end is one more write. Fewer calls need one ring for all connections (io_uring), which Go's net package does not have.",
		},
		{
			"CPU of a relayed token", `^stream/token: `,
			"The difference to nginx is a second read for each token, which finds that no more has arrived. TCP_INQ would save that read, and gain 2 %. More needs one goroutine with a poller of its own for many streams, and so another HTTP server than fasthttp.",
		},
		{
			"Memory of an idle stream", `^stream/memory: `,
			"A third is the stack of the client's goroutine, a quarter the server's writer, request and response, and a sixth the state of the request. Less needs another HTTP server than fasthttp, and to free the prompt once decode has begun.",
		},
		{
			"Replay on 1P3D", `^replay/mooncake: 1P3D`,
			"All routers are level. One prefill engine is too few for these prompts, with every router.",
		},
		{
			"Bandwidth beside memcpy", `^plane/bandwidth: .* memcpy$`,
			"memcpy copies inside one process. No way between two processes comes near it.",
		},
		{
			"Bandwidth of neighbouring blocks over NIXL", `^plane/bandwidth: nixl .* neighbours:`,
			"pdrouter opens the library with `UCX_CMA_SEG_SIZE=4m`, so that a copy needs fewer system calls. Of a transfer of 4 MiB 55 % is then the copy, 20 % the time until the plan begins, 5 % the plan, 4 % the post and 7 % the completion. Of 32 MiB the copy is 87 %. Less needs messages through shared memory: see the completion over NIXL.",
		},
		{
			"Shuffled blocks over NIXL", `^plane/(bandwidth: nixl|post: nixl)`,
			"Between processes of this machine UCX moves each descriptor by one call of `process_vm_writev`. These calls are 55 % of prefill's CPU time. Other values of `num_workers`, `num_threads` and `split_batch_size` made no difference that stands out from the noise of two CPUs. To reach the aim needs one call for many descriptors, or a network card or a GPU, which take descriptors in a queue.",
		},
		{
			"Bandwidth by the kernel's copy and by sockets", `^plane/bandwidth: (memory|socket) `,
			"Of 1,024 shuffled blocks of 4 KiB by the kernel's copy, 66 % of the time is the copy, 13 % the time until the plan begins, 2 % the plan, and 10 % the checks and the wake-up before the first byte. Each block costs 0.1 µs in the plane and 0.17 µs more than the bare call's in the kernel; each write costs 0.2 ms whatever its size. Less needs fewer goroutines in a row.",
		},
		{
			"A completion over NIXL", `^plane/(notify: nixl|count: nixl N=1:)`,
			"The bytes go by `process_vm_writev`, and everything else over a loopback connection, at 8 to 10 µs for each message. Messages through shared memory (`UCX_SYSV_ERROR_HANDLING=y`, `UCX_POSIX_ERROR_HANDLING=y`) lowered the raw round trip from 22 to 4.8 µs, and the time from sent to seen from 68 to 35 µs. pdrouter does not use them, because a producer must learn that its peer has closed (`TestTransportReceiverCloses`).",
		},
		{
			"A completion over memory and sockets", `^plane/(notify: (memory|socket)|count: memory)`,
			"Three goroutines take part: the producer's stream, the reader and the owner. To wake the thread of one costs 5 to 8 µs here. One goroutine for all three could not read from one peer while it writes to another. The release of decode is one more wake-up: 6 µs where the engine's goroutine runs on the owner's thread, 25 µs elsewhere.",
		},
		{
			"Completions of several consumers over NIXL", `^plane/count: nixl`,
			"The consumers are agents of one process. They poll in turns on the CPUs that prefill's agent leaves them, and each write waits for two polls of its agent. As processes with a CPU each they would not wait for each other.",
		},
		{
			"A registration over NIXL", `^plane/register: `,
			"Bare agents need 127 µs; the bytes alone are 57 µs of it. The rest is the same messages as those of a completion.",
		},
		{
			"Four pairs at once", `^pair/cold: .* 4 pairs at once`,
			"A handshake is CPU time. Over NIXL one pair takes 42 to 45 ms of it and four pairs of one prefill engine 115 to 165 ms. Two CPUs share that, so it takes at least half as long. A third of it is the choice of transports, in which UCX looks at the network interfaces. By the kernel's copy five processes share the two CPUs. The aim needs as many CPUs as engines.",
		},
		{
			"A request beside a cold pair", `^pair/cold: .* request beside a cold pair`,
			"The request waits for no handshake. It shares the two CPUs with the handshake and with the start of an engine.",
		},
		{
			"An idle gateway with 1,000 engines", `^idle: `,
			"By the run it takes 0.018 to 0.0225 of a core. It sends 600 checks a second, each of about 33 µs on a connection that stays open, and half of that is system calls. Less needs fewer checks: a larger `timeouts.health`, or fewer checks of engines whose answers tell as much.",
		},
	}
}
