//go:build e2e

package e2e

import (
	"cmp"
	"os"
	"testing"
	"time"
)

// TestVLLMPlane splits requests over vLLM engines that hand their KV over by pdrouter's plane: it compares every answer with that of
// one instance alone, ends requests in every way that leaves KV behind, kills engines while other requests run, and reads the engines'
// own counters. Engines serve in several shapes, since their starts are what costs. It needs what TestStockVLLM needs. N=200 sets how
// many clients leave. MODEL=window or windows has a model with sliding windows, as tiny_model.py makes it, and compares over one pair only.
func TestVLLMPlane(t *testing.T) {
	kind := cmp.Or(os.Getenv("MODEL"), "full")
	v := prepare(t, kind)
	v.step(t, "make the wheel and install it", func() { v.wheel(t) })
	var l *load
	var tale string
	more := func(url string) { l, tale = newLoad(t, url), story(t, url) }
	if !t.Run("alone", func(t *testing.T) { v.record(t, more, "split", "fan", "alone") }) {
		return
	}
	w := newPlane(t, v, kind)
	w.step(t, "start prefill, decode and the gateway", func() {
		w.add(t, "prefill")
		w.add(t, "decode")
		w.joined(t)
	})
	ok := t.Run("1P1D", func(t *testing.T) {
		w.compare(t)
		w.step(t, "prefill holds blocks while decode stands still", func() { w.holds(t, l) })
	})
	if !ok || kind != "full" {
		return
	}
	w.step(t, "start a second prefill and a second decode", func() {
		w.add(t, "prefill")
		w.add(t, "decode")
		w.joined(t)
	})
	ok = t.Run("2P2D", func(t *testing.T) {
		w.compare(t)
		w.step(t, "clients that leave while others ask", func() { w.leaves(t, l) })
		w.step(t, "prefill killed while decode waits, and started again", func() { w.prefillDies(t, l) })
		w.step(t, "prefill stands still while clients leave", func() { w.stalls(t, l) })
		w.step(t, "decode killed in the middle of a stream, and started again", func() { w.decodeDies(t, l, tale) })
	})
	if !ok {
		return
	}
	w.step(t, "end one pair, and start the other prefill again with two ranks", func() {
		for _, m := range []*member{w.prefill[0], w.prefill[1], w.decode[1]} {
			_ = m.stop(t, time.Minute) // how it ends is its own affair
			m.kill()
		}
		w.prefill, w.decode = w.prefill[:1], w.decode[:1]
		w.prefill[0].tp = 2
		w.start(t, w.prefill[0])
		w.joined(t)
	})
	t.Run("prefill TP 2, decode TP 1", w.compare)
	w.step(t, "stop the gateway", func() {
		if err := w.front.stop(t, time.Minute); err != nil {
			t.Errorf("pdrouter after SIGTERM: %v", err)
		}
	})
}
