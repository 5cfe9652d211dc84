package metadata

import (
	"context"
	"time"
)

// BulkReader is a Store that reads many engines at once.
type BulkReader interface {
	// Names returns every engine that may have records.
	Names(ctx context.Context) ([]string, error)
	// Read returns, for each engine, what the store has beyond what is known.
	Read(ctx context.Context, engines []string, known func(engine string) Known) []Reading
}

// Known is what a reader knows of one engine already.
type Known interface {
	// Knows reports whether a record of this generation and rank, published then with this content, need not be read.
	Knows(generation uint64, rank Rank, published time.Time, content string, now time.Time) bool
	// Holds reports whether a withdrawal is of a record that the reader has.
	Holds(gone Change) bool
}

// Reading is the result of reading one engine.
type Reading struct {
	Found []Found  // records that were not known
	Gone  []Change // withdrawals of records that the reader has
	Err   error
}

// Found is a record that a store has.
type Found struct {
	Record  Record
	Until   time.Time // end of its lease
	Content string    // see ContentOf
}
