package store_test

import (
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"pdrouter/internal/metadatatest"
	"pdrouter/metadata"
	"pdrouter/metadata/store"
)

// A Memory that is written to forgets generations after a day, and looks for them once a second.
func TestMemorySweeps(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := store.NewMemory()
		metadatatest.Put(t, m, metadatatest.Record("prefill-0", 7, 1, 0), nil)
		time.Sleep(metadata.FenceKept - time.Second/2)
		metadatatest.Put(t, m, metadatatest.Record("prefill-1", 7, 1, 0), nil)
		time.Sleep(time.Second * 3 / 4)
		metadatatest.Put(t, m, metadatatest.Record("prefill-2", 7, 1, 0), nil)
		if len(m.Remembered()) != 3 {
			t.Errorf("%d engines; want 3: it looked within a second", len(m.Remembered()))
		}
		time.Sleep(time.Second)
		metadatatest.Put(t, m, metadatatest.Record("prefill-3", 7, 1, 0), nil)
		if slices.Contains(m.Remembered(), "prefill-0") {
			t.Error("a generation is remembered for longer than a day")
		}
	})
}

func TestMemoryConformance(t *testing.T) {
	metadatatest.StoreConformance(t, func(*testing.T) metadata.Store { return store.NewMemory() })
}

// TestFault69LeasesEndOnTheMonotonicClock: what a lease's end is compared with has the reading of the clock that nobody sets.
func TestFault69LeasesEndOnTheMonotonicClock(t *testing.T) {
	s := store.NewMemory()
	rec := metadatatest.Later(metadatatest.Record("prefill-0", 7, 1, 0), -time.Hour)
	metadatatest.Put(t, s, rec, nil)
	if until := s.Until(rec.Engine, rec.Rank); !strings.Contains(until.String(), " m=") {
		t.Errorf("the lease ends at %v; want a monotonic reading in it", until)
	}
}
