package bench

import (
	"testing"
	"time"
)

// TestRedisIsPaused stops a Redis of the test's own and lets it go on.
func TestRedisIsPaused(t *testing.T) {
	server, err := startRedis(t.Context())
	if err != nil {
		t.Skip(err)
	}
	defer server.stop()
	db, err := server.open()
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	if err := server.pause(); err != nil {
		t.Fatal(err)
	}
	answered := make(chan error, 1)
	go func() { answered <- db.Ping(t.Context()).Err() }()
	select {
	case err := <-answered:
		if err == nil {
			t.Error("a Redis that is stopped answers")
		}
	case <-time.After(50 * time.Millisecond):
	}
	if err := server.resume(t.Context()); err != nil {
		t.Fatal(err)
	}
}
