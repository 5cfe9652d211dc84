package router_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"pdrouter/internal/routertest"
	"pdrouter/metadata"
	"pdrouter/router"
	"pdrouter/router/config"
	"pdrouter/router/connector"
)

// BenchmarkWarm looks at the pairs of 100 prefill and 100 decode engines: while all are cold and queued, and when all are
// warm. The second is what a router does that has nothing to do, once in 30 seconds.
func BenchmarkWarm(b *testing.B) {
	m := config.Model{Name: "tiny", Connector: connector.NameKVPlane}
	records := &routertest.Records{ByEngine: map[string][]metadata.Record{}}
	for i := range 100 {
		p, d := fmt.Sprint("prefill-", i), fmt.Sprint("decode-", i)
		m.Prefill = append(m.Prefill, config.Engine{Name: p, URL: "http://127.0.0.1:1"})
		m.Decode = append(m.Decode, config.Engine{Name: d, URL: "http://127.0.0.1:1"})
		records.Publish(p, metadata.Prefill, uint64(100+i), "same")
		records.Publish(d, metadata.Decode, uint64(300+i), "same")
	}
	for _, warm := range []bool{false, true} {
		b.Run(fmt.Sprintf("warm=%t", warm), func(b *testing.B) {
			r, err := router.New(config.Config{Models: []config.Model{m}}, router.Parts{Records: records})
			if err != nil {
				b.Fatal(err)
			}
			hold := make(chan struct{})
			if warm {
				close(hold)
			}
			if err := r.Debug().SetHandshake(func(context.Context, metadata.Pair) error { <-hold; return nil }); err != nil {
				b.Fatal(err)
			}
			defer r.Close()
			r.Debug().Warm()
			for warm && r.Stats().Handshakes.Ready < 10_000 {
				time.Sleep(time.Millisecond)
			}
			b.ReportAllocs()
			for b.Loop() {
				r.Debug().Warm()
			}
			if !warm {
				close(hold)
			}
		})
	}
}
