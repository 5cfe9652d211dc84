package fanout_test

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"pdrouter/router/dispatch"
	"pdrouter/router/fanout"
)

// TestFault58FanErrorIsTheLast has two choices fail at the same moment, or one go on meanwhile: nothing stands behind the first
// error event.
func TestFault58FanErrorIsTheLast(t *testing.T) {
	for i := range 20000 {
		take, ended := fanout.New()
		var wg sync.WaitGroup
		for k := range 2 {
			wg.Go(func() {
				for n := range 3 {
					if !take(k, fmt.Appendf(nil, "data: {\"id\":\"c\",\"choices\":[{\"index\":0,\"text\":\"%d\"}]}\n\n", n)) {
						return
					}
				}
				take(k, []byte("data: {\"error\":{\"message\":\"no\",\"code\":500}}\n\n"))
			})
		}
		wg.Wait()
		out, outcome := ended()
		if at := strings.Index(out, `{"error"`); at < 0 || strings.Contains(out[at:], "data: ") {
			t.Fatalf("stream %d: %q", i, out)
		}
		if outcome != dispatch.FailedAfter {
			t.Fatalf("stream %d is %q", i, outcome)
		}
	}
}

// TestFault68PanicInAMerge has the merge of an event panic: the stream ends with an error event, and the request does not wait for ever.
func TestFault68PanicInAMerge(t *testing.T) {
	take, fail := fanout.NewPanicking()
	panicked := func() (yes bool) {
		defer func() { yes = recover() != nil }()
		take()
		return
	}()
	if !panicked {
		t.Fatal("nothing has panicked")
	}
	failed := make(chan struct{})
	go func() {
		defer close(failed)
		if out, outcome := fail(); strings.Count(out, `data: {"error"`) != 1 || outcome != dispatch.FailedAfter {
			t.Errorf("the client has %q, the outcome is %q", out, outcome)
		}
	}()
	select {
	case <-failed:
	case <-time.After(10 * time.Second):
		t.Fatal("the request never ends")
	}
}
