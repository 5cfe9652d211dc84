package simulate

import (
	"context"
	"testing"
	"time"

	"pdrouter/bench/load"
)

// BenchmarkReplay prints what one request of a replay takes.
func BenchmarkReplay(b *testing.B) {
	cost, err := Cost(4, slo)
	if err != nil {
		b.Fatal(err)
	}
	s := Sweep{Trace: load.MadeTrace(8000, 1), Mixes: []Mix{{"recorded", 1, 1, []float64{1.5}}}, Systems: []System{cost}, Seeds: 1, Window: 20 * time.Minute, Costs: costs(b), SLO: slo}
	requests := 0
	for b.Loop() {
		rows, err := s.Run(context.Background(), nil)
		if err != nil {
			b.Fatal(err)
		}
		requests += rows[0].Requests
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(requests), "ns/request")
}
