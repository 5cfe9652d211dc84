package router_test

import (
	"fmt"
	"syscall"
	"testing"
	"time"

	"pdrouter/router"
	"pdrouter/router/config"
	"pdrouter/router/connector"
	"pdrouter/router/upstream"
)

// BenchmarkHealthChecks1000 prints what the health checks of 1,000 engines cost: each on a kept connection of its own, the
// engines' side included.
func BenchmarkHealthChecks1000(b *testing.B) {
	const engines = 1000
	url := newCannedEngine(b)
	m := config.Model{Name: "m", Connector: connector.NameNone}
	for i := range engines {
		m.Engines = append(m.Engines, config.Engine{Name: fmt.Sprint("engine-", i), URL: url})
	}
	r, err := router.New(config.Config{Models: []config.Model{m}}, router.Parts{})
	if err != nil {
		b.Fatal(err)
	}
	defer r.Close()
	all, every := r.Debug().Engines(), 2*time.Second
	for _, e := range all {
		if !e.Check(upstream.NewTimeouts(b.Context()), every) {
			b.Fatal("not healthy")
		}
	}
	spent := func() time.Duration {
		var u syscall.Rusage
		if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
			b.Fatal(err)
		}
		return time.Duration(u.Utime.Nano() + u.Stime.Nano())
	}
	b.ReportAllocs()
	its := upstream.NewTimeouts(b.Context())
	begun, n := spent(), 0
	for b.Loop() {
		if !all[n%engines].Check(its, every) {
			b.Fatal("not healthy")
		}
		n++
	}
	cpu := float64(spent()-begun) / float64(n)
	b.ReportMetric(cpu, "cpu-ns/check")
	b.ReportMetric(cpu*engines/float64(every), "cores/1000-engines")
}
