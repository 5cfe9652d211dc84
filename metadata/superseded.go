package metadata

import "fmt"

// Superseded is the ErrStale of a record whose engine has a newer generation.
type Superseded struct {
	Generation uint64 // the record's
	Known      uint64 // the newest; 0 if that is not told
}

// Error names both generations.
func (s *Superseded) Error() string {
	return fmt.Sprintf("generation is %x; known is %x: %v", s.Generation, s.Known, ErrStale)
}

// Unwrap returns ErrStale.
func (s *Superseded) Unwrap() error { return ErrStale }
