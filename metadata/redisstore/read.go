package redisstore

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"pdrouter/metadata"
)

// Bounds of one read.
const (
	readBatch    = 256                     // commands of one pipeline
	maxHashBytes = 200 * metadata.MaxRanks // of one engine's hash
)

// readScript answers with an engine's hash, or, if that is larger than any can be, with its size alone: what lies in
// Redis must not fill this process's memory.
//
//	KEYS  engine's hash
//	ARGV  most fields · most bytes
const readScript = `
local n = redis.call('HLEN', KEYS[1])
if n > tonumber(ARGV[1]) then return {tostring(n)} end
n = 0
for _, f in ipairs(redis.call('HKEYS', KEYS[1])) do n = n + #f + redis.call('HSTRLEN', KEYS[1], f) end
if n > tonumber(ARGV[2]) then return {tostring(n)} end
return redis.call('HGETALL', KEYS[1])`

// indexScript answers with the names of the engines whose fence is kept. What is no name is left out.
//
//	KEYS  index
//	ARGV  now in ms · most names · most bytes of a name
const indexScript = `
local names = {}
for _, name in ipairs(redis.call('ZRANGE', KEYS[1], ARGV[1], '+inf', 'BYSCORE', 'LIMIT', 0, ARGV[2])) do
  if #name <= tonumber(ARGV[3]) then names[#names + 1] = name end
end
return names`

// maxIndexed bounds the engines that are read from the index.
const maxIndexed = 20000

// index is what an engine's hash says. Nobody has signed it: it tells what to read, and what not to.
type index struct {
	metadata.Incarnation
	ranks map[string]rankEntry
	err   error // the hash could not be read
}

// rankEntry is what a hash says of one rank.
type rankEntry struct {
	rank      metadata.Rank
	published time.Time
	content   string // "" is not told
	withdrawn bool
}

// indexes reads the hashes of many engines. An engine of which nothing or nothing sensible is held has no ranks.
func (s *Store) indexes(ctx context.Context, engines []string) []index {
	all := make([]index, len(engines))
	cmds := make([]*redis.Cmd, len(engines))
	_, _ = s.db.Pipelined(ctx, func(p redis.Pipeliner) error { // each command has its own error
		for i, engine := range engines {
			if all[i].Engine = engine; metadata.ValidName(engine) == nil {
				cmds[i] = p.Eval(ctx, readScript, []string{s.engineKey(engine)}, metadata.MaxRanks+1, maxHashBytes)
			}
		}
		return nil
	})
	for i, cmd := range cmds {
		if cmd == nil {
			continue
		}
		words, err := cmd.StringSlice()
		if err == nil {
			err = all[i].parse(words)
		} else if !ofKey(err) {
			all[i].err = err
			continue
		}
		if err != nil {
			s.quarantine.put(s.log, engines[i], "", err)
			all[i].ranks = nil
		}
	}
	return all
}

// parse takes in the fields and values of a hash.
func (x *index) parse(words []string) error {
	if len(words) == 1 {
		return fmt.Errorf("hash has %.20s fields or bytes; want at most %d fields", words[0], metadata.MaxRanks+1)
	}
	x.ranks = make(map[string]rankEntry, len(words)/2)
	for pair := range slices.Chunk(words, 2) {
		var err error
		if pair[0] == generationField {
			x.Generation, err = parsePadded(pair[1])
		} else {
			x.ranks[pair[0]], err = parseRankEntry(pair[0], pair[1])
		}
		if err != nil {
			return fmt.Errorf("field %.40q: %w", pair[0], err)
		}
	}
	if x.Generation == 0 && len(words) > 0 {
		return errors.New("hash has no generation")
	}
	return nil
}

func parseRankEntry(field, value string) (r rankEntry, err error) {
	if r.rank, err = metadata.ParseRank(field); err != nil {
		return rankEntry{}, err
	}
	rest := value[min(20, len(value)):]
	if r.published, err = parsePublished(value[:len(value)-len(rest)]); err != nil {
		return rankEntry{}, err
	}
	r.withdrawn = rest == withdrawnMark
	if len(rest) > metadata.ContentLen { // after the call that published it
		r.content = rest[len(rest)-metadata.ContentLen:]
	}
	return r, nil
}

// wanted is a rank's value that is to be read.
type wanted struct {
	inc  metadata.Incarnation
	rank string
	of   int // its place in the list of engines
}

// Names implements metadata.BulkReader: every engine that has put a record, or had within the time that its fence is kept.
func (s *Store) Names(ctx context.Context) ([]string, error) {
	names, err := s.eval(ctx, indexScript, []string{s.indexKey()}, time.Now().UnixMilli(), maxIndexed, metadata.MaxName).StringSlice()
	if ofKey(err) { // each engine that publishes again is heard of
		s.quarantine.put(s.log, indexName, "", err)
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("metadata: redis: list: %w", err)
	}
	if len(names) == maxIndexed {
		s.quarantine.put(s.log, indexName, "", fmt.Errorf("index has %d names or more; the others are not read", maxIndexed))
	}
	return names, nil
}

// Read implements metadata.BulkReader: one round trip for the engines' hashes, and one for every few hundred values that they
// announce and that are not known.
func (s *Store) Read(ctx context.Context, engines []string, known func(engine string) metadata.Known) []metadata.Reading {
	answers := make([]metadata.Reading, len(engines))
	var want []wanted
	now := time.Now()
	for i, x := range s.indexes(ctx, engines) {
		answers[i].Err = x.err
		old := known(engines[i])
		for rank, r := range x.ranks {
			switch {
			case r.withdrawn:
				gone := metadata.Change{Incarnation: x.Incarnation, Rank: r.rank, Deleted: true, Published: r.published}
				if old.Holds(gone) {
					answers[i].Gone = append(answers[i].Gone, gone)
				}
			case !old.Knows(x.Generation, r.rank, r.published, r.content, now):
				want = append(want, wanted{x.Incarnation, rank, i})
			}
		}
	}
	for some := range slices.Chunk(want, readBatch) {
		s.values(ctx, some, answers)
	}
	return answers
}

// values reads some values and adds what they hold to the answers.
func (s *Store) values(ctx context.Context, want []wanted, answers []metadata.Reading) {
	values, leases := make([]*redis.StringCmd, len(want)), make([]*redis.DurationCmd, len(want))
	asked := time.Now()
	_, _ = s.db.Pipelined(ctx, func(p redis.Pipeliner) error {
		for i, w := range want { // no more of a value than a record may have, and one byte that shows that it has more
			key := s.rankKey(w.inc, w.rank)
			values[i], leases[i] = p.GetRange(ctx, key, 0, metadata.MaxRecordBytes), p.PTTL(ctx, key)
		}
		return nil
	})
	all := make([]metadata.Found, len(want))
	errs := make([]error, len(want))
	parallel(len(want), func(i int) {
		if b, err := values[i].Result(); err == nil && b != "" {
			all[i], errs[i] = s.trusted([]byte(b), want[i], asked, leases[i].Val())
		} else if ofKey(err) {
			errs[i] = err
		}
	})
	for i, w := range want {
		switch err := errors.Join(values[i].Err(), leases[i].Err()); {
		case err != nil && errs[i] == nil:
			answers[w.of].Err = err
		case errs[i] != nil:
			s.quarantine.put(s.log, w.inc.Engine, w.rank, errs[i])
		case all[i].Until.After(asked): // else the lease is over
			answers[w.of].Found = append(answers[w.of].Found, all[i])
		}
	}
}

// parallel calls do for 0 to n-1 on all processors and returns when all are done.
func parallel(n int, do func(i int)) {
	var next atomic.Int64
	var workers sync.WaitGroup
	for range min(n, runtime.GOMAXPROCS(0)) {
		workers.Go(func() {
			for i := int(next.Add(1)) - 1; i < n; i = int(next.Add(1)) - 1 {
				do(i)
			}
		})
	}
	workers.Wait()
}

// trusted decodes a value, checks that it is what its key says, and adds how long it holds from the moment it was asked for:
// as long as its key lives, which is counted on the clock that the lease was given by, but not longer than it says itself,
// nor longer than a gateway's word lets its agent vouch for it. The time of day of who published it does not count.
func (s *Store) trusted(b []byte, want wanted, asked time.Time, ttl time.Duration) (metadata.Found, error) {
	if ttl == -1 { // as the driver writes it
		return metadata.Found{}, errors.New("value has no lease; want one, as Put gives")
	}
	var rec metadata.Record
	var err error
	if s.voucher != nil {
		rec, err = metadata.UnmarshalSigned(b, s.voucher)
	} else {
		rec, err = metadata.Unmarshal(b)
	}
	if err != nil {
		return metadata.Found{}, err
	}
	if rec.Incarnation != want.inc || rec.Rank.String() != want.rank {
		return metadata.Found{}, fmt.Errorf("value is of engine %s rank %v", rec.ID(), rec.Rank)
	}
	if err := metadata.Storable(rec); err != nil {
		return metadata.Found{}, err
	}
	content, err := metadata.ContentOf(b)
	if err != nil {
		return metadata.Found{}, err
	}
	left := min(ttl, rec.Believed(asked).Sub(asked))
	return metadata.Found{Record: rec, Until: asked.Add(left), Content: content}, nil
}

// nothing is what a reader knows who has read nothing.
type nothing struct{}

func (nothing) Knows(uint64, metadata.Rank, time.Time, string, time.Time) bool { return false }
func (nothing) Holds(metadata.Change) bool                                     { return false }

// Engine implements Store.
func (s *Store) Engine(ctx context.Context, engine string) ([]metadata.Record, error) {
	a := s.Read(ctx, []string{engine}, func(string) metadata.Known { return nothing{} })[0]
	if a.Err == nil && len(a.Found) == 0 {
		a.Err = metadata.ErrNotFound
	}
	if a.Err != nil {
		return nil, fmt.Errorf("metadata: engine %.140q: redis: %w", engine, a.Err)
	}
	recs := make([]metadata.Record, len(a.Found))
	for i, f := range a.Found {
		recs[i] = f.Record
	}
	metadata.SortRanks(recs)
	return recs, nil
}

// List implements Store.
func (s *Store) List(ctx context.Context) ([]string, error) {
	all, err := s.Names(ctx)
	if err != nil {
		return nil, err
	}
	var live []string
	for names := range slices.Chunk(all, readBatch) {
		some := s.indexes(ctx, names)
		cmds := make([]*redis.IntCmd, len(some))
		_, err := s.db.Pipelined(ctx, func(p redis.Pipeliner) error {
			for i, x := range some {
				if x.err != nil {
					return x.err
				}
				var keys []string
				for rank, r := range x.ranks {
					if !r.withdrawn {
						keys = append(keys, s.rankKey(x.Incarnation, rank))
					}
				}
				if len(keys) > 0 {
					cmds[i] = p.Exists(ctx, keys...)
				}
			}
			return nil
		})
		if err != nil {
			return nil, fmt.Errorf("metadata: redis: list: %w", err)
		}
		for i, cmd := range cmds {
			if cmd != nil && cmd.Val() > 0 {
				live = append(live, some[i].Engine)
			}
		}
	}
	slices.Sort(live)
	return live, nil
}
