package cache

import (
	"strings"
	"testing"
	"time"

	"pdrouter/internal/metadatatest"
	"pdrouter/metadata/store"
)

// TestFault69CopiesEndOnTheMonotonicClock: what a lease's end is compared with has the reading of the clock that nobody sets.
func TestFault69CopiesEndOnTheMonotonicClock(t *testing.T) {
	s := store.NewMemory()
	rec := metadatatest.Later(metadatatest.Record("prefill-0", 7, 1, 0), -time.Hour)
	metadatatest.Put(t, s, rec, nil)
	c := newCache(t, s, Config{})
	look(t, c)
	if e := (*c.copies.Load())["prefill-0"]; e == nil || !strings.Contains(e.until[0].String(), " m=") {
		t.Errorf("the copy's lease ends at %+v; want a monotonic reading in it", e)
	}
}
