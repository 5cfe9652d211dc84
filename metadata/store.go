package metadata

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"
)

// The errors of a Store that callers branch on.
var (
	// ErrStale says that the store already knows something newer: a later generation of the engine, or the same
	// rank published later.
	ErrStale = errors.New("stale")
	// ErrNotFound says that no record is held under this name.
	ErrNotFound = errors.New("not found")
)

// FenceKept is how long a store remembers the newest generation of an engine whose records are gone.
const FenceKept = 24 * time.Hour

// MaxPublished is a bound of times of publication, in seconds since 1970: their nanoseconds fit into 63 bits.
const MaxPublished = 1 << 33

// Store keeps the records of the newest generation of each engine until their lease ends. A record's lease is
// Record.Lifetime, counted on the store's own clock from the moment it was put.
//
// A store shares the slices inside records with its callers: they must not be changed after Put or a read.
// It is safe for concurrent use.
type Store interface {
	// Put stores a record or renews it. It returns ErrStale if the engine has a newer generation, or if this rank
	// was published at the same time or later under the same generation; the store is then unchanged.
	Put(ctx context.Context, rec Record) error
	// Engine returns the records of the engine's newest generation in the order of their ranks, or ErrNotFound.
	Engine(ctx context.Context, engine string) ([]Record, error)
	// List returns the names of the engines that have records, sorted.
	List(ctx context.Context) ([]string, error)
	// Delete removes the record of one rank of one generation. It returns ErrStale if the engine has a newer
	// generation and ErrNotFound if there is no such record.
	Delete(ctx context.Context, inc Incarnation, rank Rank) error
	// Watch calls changed for every change until ctx ends, and returns ctx's error. changed must not block.
	// A Change without an engine says that changes may have been missed: read everything again.
	Watch(ctx context.Context, changed func(Change)) error
}

// Change announces that what is known of an engine has changed.
type Change struct {
	Incarnation      // Engine is "" if anything may have changed
	Rank        Rank // the rank put or deleted
	Deleted     bool
	Published   time.Time // of the record that was put or deleted; zero is not told
	Content     string    // a digest of what the record put says, its times and signature aside; "" is not told
}

// Voucher signs what this gateway vouches for, and checks what others signed. Package auth implements it with
// Ed25519 keys from files.
type Voucher interface {
	Sign(payload []byte) (keyID string, signature []byte, err error)
	Verify(keyID string, payload, signature []byte) error
}

// Storable returns nil if a store can keep the record.
func Storable(rec Record) error {
	if err := rec.Validate(); err != nil {
		return fmt.Errorf("metadata: engine %.140q rank %v: %w", rec.Engine, rec.Rank, err)
	}
	if rec.Published.IsZero() || rec.Published.Unix() < 0 {
		return fmt.Errorf("metadata: engine %s rank %v: %w", rec.Engine, rec.Rank, errors.New("has no time of publication"))
	}
	if rec.Published.Unix() >= MaxPublished {
		return fmt.Errorf("metadata: engine %s rank %v: published at %v, which is too late to be written in nanoseconds", rec.Engine, rec.Rank, rec.Published)
	}
	if rec.Lifetime() > FenceKept {
		return fmt.Errorf("metadata: engine %s rank %v: expires %v after it was published; want at most %v", rec.Engine, rec.Rank, rec.Lifetime(), FenceKept)
	}
	if rec.Lifetime() < time.Millisecond {
		return fmt.Errorf("metadata: engine %s rank %v: expires %v after it was published; want at least 1ms", rec.Engine, rec.Rank, rec.Lifetime())
	}
	return nil
}

// SortRanks orders records by dp, pp, tp.
func SortRanks(recs []Record) {
	slices.SortFunc(recs, func(a, b Record) int { return a.Rank.Compare(b.Rank) })
}
