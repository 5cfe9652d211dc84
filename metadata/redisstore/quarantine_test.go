package redisstore_test

import (
	"errors"
	"testing"
	"time"

	"pdrouter/internal/metadatatest"
	"pdrouter/internal/redistest"
	"pdrouter/metadata"
)

func TestFault43RedisQuarantine(t *testing.T) {
	server := redistest.Start(t)
	v, stranger := metadatatest.NewVoucher("gateway"), metadatatest.NewVoucher("stranger")
	s := metadatatest.RedisAt(t, server, v, "pdrouter")
	rec := metadatatest.Record("prefill-0", 7, 2, 0)
	good, err := rec.Sign(v)
	if err != nil {
		t.Fatal(err)
	}
	other, err := metadatatest.Record("prefill-1", 7, 2, 0).Sign(v)
	if err != nil {
		t.Fatal(err)
	}
	foreign, err := rec.Sign(stranger)
	if err != nil {
		t.Fatal(err)
	}
	stolen := foreign
	stolen.KeyID = "gateway"
	sibling, err := metadatatest.Record("prefill-0", 7, 2, 1).Sign(v)
	if err != nil {
		t.Fatal(err)
	}
	metadatatest.Put(t, s, sibling, nil)
	metadatatest.Put(t, s, good, nil)
	key := s.RankKey(rec.Incarnation, rec.Rank.String())
	for name, value := range map[string][]byte{
		"unsigned":             metadatatest.Marshal(t, rec),
		"signed by a stranger": metadatatest.Marshal(t, foreign),
		"stranger, our key id": metadatatest.Marshal(t, stolen),
		"truncated":            metadatatest.Marshal(t, good)[:100],
		"oversize":             make([]byte, 10<<20),
		"other engine":         metadatatest.Marshal(t, other),
		"other rank":           metadatatest.Marshal(t, sibling),
		"not msgpack":          []byte("hello"),
	} {
		if err := s.DB.Set(t.Context(), key, value, time.Minute).Err(); err != nil {
			t.Fatal(err)
		}
		before := s.Quarantined()
		recs, err := s.Engine(t.Context(), "prefill-0")
		if err != nil || len(recs) != 1 || recs[0].Rank != sibling.Rank || s.Quarantined() != before+1 {
			t.Errorf("%s: got %d records, %v, %d quarantined; want the sibling alone", name, len(recs), err, s.Quarantined()-before)
		}
		var u *metadata.Unpairable
		if err := metadata.Pairable(recs, metadatatest.Engine("decode-0", 1)); !errors.As(err, &u) || u.Reason != metadata.IncompleteRanks {
			t.Errorf("%s: got %v; want %s", name, err, metadata.IncompleteRanks)
		}
	}
	if err := s.DB.HSet(t.Context(), s.EngineKey("prefill-0"), "generation", "8").Err(); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Engine(t.Context(), "prefill-0"); !errors.Is(err, metadata.ErrNotFound) {
		t.Errorf("broken generation: got %v; want ErrNotFound", err)
	}
}
