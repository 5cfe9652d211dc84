package metadata

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
)

// Bounds of one read.
const (
	readBatch    = 256            // commands of one pipeline
	maxHashBytes = 200 * MaxRanks // of one engine's hash
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

// redisIndex is what an engine's hash says.
type redisIndex struct {
	Incarnation
	ranks map[string]uint64 // rank → when its record was published, in nanoseconds
	err   error             // the hash could not be read
}

// indexes reads the hashes of many engines. An engine of which nothing or nothing sensible is held has no ranks.
func (s *Redis) indexes(ctx context.Context, engines []string) []redisIndex {
	all := make([]redisIndex, len(engines))
	cmds := make([]*redis.Cmd, len(engines))
	_, _ = s.db.Pipelined(ctx, func(p redis.Pipeliner) error { // each command has its own error
		for i, engine := range engines {
			if all[i].Engine = engine; ValidName(engine) == nil {
				cmds[i] = p.Eval(ctx, readScript, []string{s.engineKey(engine)}, MaxRanks+1, maxHashBytes)
			}
		}
		return nil
	})
	for i, cmd := range cmds {
		if cmd == nil {
			continue
		}
		words, err := cmd.StringSlice()
		if err != nil {
			all[i].err = err
		} else if err := all[i].parse(words); err != nil {
			s.quarantine(engines[i], "", err)
			all[i].ranks = nil
		}
	}
	return all
}

// parse takes in the fields and values of a hash.
func (x *redisIndex) parse(words []string) error {
	if len(words) == 1 {
		return fmt.Errorf("hash has %.20s fields or bytes; want at most %d fields", words[0], MaxRanks+1)
	}
	x.ranks = make(map[string]uint64, len(words)/2)
	for pair := range slices.Chunk(words, 2) {
		n, err := parsePadded(pair[1][:min(20, len(pair[1]))])
		if err != nil {
			return fmt.Errorf("field %.40q: %w", pair[0], err)
		}
		if pair[0] == generationField {
			x.Generation = n
		} else {
			x.ranks[pair[0]] = n
		}
	}
	if x.Generation == 0 && len(words) > 0 {
		return errors.New("hash has no generation")
	}
	return nil
}

// redisWant is a rank's value that is to be read.
type redisWant struct {
	inc  Incarnation
	rank string
	of   int // its place in the list of engines
}

// names implements bulk: every engine that has put a record, or had within the time that its fence is kept.
func (s *Redis) names(ctx context.Context) ([]string, error) {
	now := strconv.FormatInt(time.Now().UnixMilli(), 10)
	var found *redis.StringSliceCmd
	if _, err := s.db.Pipelined(ctx, func(p redis.Pipeliner) error {
		p.ZRemRangeByScore(ctx, s.indexKey(), "-inf", "("+now)
		found = p.ZRange(ctx, s.indexKey(), 0, -1)
		return nil
	}); err != nil {
		return nil, fmt.Errorf("metadata: redis: list: %w", err)
	}
	return found.Val(), nil
}

// read implements bulk: one round trip for the engines' hashes, and one for every few hundred values that they
// announce and that are not known.
func (s *Redis) read(ctx context.Context, engines []string, known func(engine string) *copied) []reading {
	answers := make([]reading, len(engines))
	var want []redisWant
	for i, x := range s.indexes(ctx, engines) {
		answers[i].err = x.err
		old := known(engines[i])
		for rank, published := range x.ranks {
			if !old.knows(x.Generation, rank, published) {
				want = append(want, redisWant{x.Incarnation, rank, i})
			}
		}
	}
	for some := range slices.Chunk(want, readBatch) {
		s.values(ctx, some, answers)
	}
	return answers
}

// values reads some values and adds what they hold to the answers.
func (s *Redis) values(ctx context.Context, want []redisWant, answers []reading) {
	values, leases := make([]*redis.StringCmd, len(want)), make([]*redis.DurationCmd, len(want))
	asked := time.Now()
	_, _ = s.db.Pipelined(ctx, func(p redis.Pipeliner) error {
		for i, w := range want { // no more of a value than a record may have, and one byte that shows that it has more
			key := s.rankKey(w.inc, w.rank)
			values[i], leases[i] = p.GetRange(ctx, key, 0, MaxRecordBytes), p.PTTL(ctx, key)
		}
		return nil
	})
	recs := make([]Record, len(want))
	errs := make([]error, len(want))
	parallel(len(want), func(i int) {
		if b := values[i].Val(); b != "" {
			recs[i], errs[i] = s.trusted([]byte(b), want[i].inc, want[i].rank)
		}
	})
	for i, w := range want {
		switch err := errors.Join(values[i].Err(), leases[i].Err()); {
		case err != nil:
			answers[w.of].err = err
		case values[i].Val() == "": // the lease is over
		case errs[i] != nil:
			s.quarantine(w.inc.Engine, w.rank, errs[i])
		default:
			left := recs[i].Lifetime()
			if ttl := leases[i].Val(); ttl > 0 { // on the clock that the lease was given by
				left = min(left, ttl)
			}
			answers[w.of].found = append(answers[w.of].found, found{recs[i], asked.Add(left)})
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

// trusted decodes a value and checks that it is what its key says.
func (s *Redis) trusted(b []byte, inc Incarnation, rank string) (Record, error) {
	var rec Record
	var err error
	if s.voucher != nil {
		rec, err = UnmarshalSigned(b, s.voucher)
	} else {
		rec, err = Unmarshal(b)
	}
	if err != nil {
		return Record{}, err
	}
	if rec.Incarnation != inc || rec.Rank.String() != rank {
		return Record{}, fmt.Errorf("value is of engine %s rank %v", rec.ID(), rec.Rank)
	}
	return rec, putable(rec)
}

func (s *Redis) quarantine(engine, rank string, err error) {
	s.quarantined.Add(1)
	s.log.Warn("metadata: redis: value not used", "engine", engine, "rank", fmt.Sprintf("%.40s", rank), "err", err)
}

// Engine implements Store.
func (s *Redis) Engine(ctx context.Context, engine string) ([]Record, error) {
	a := s.read(ctx, []string{engine}, func(string) *copied { return nil })[0]
	if a.err == nil && len(a.found) == 0 {
		a.err = ErrNotFound
	}
	if a.err != nil {
		return nil, fmt.Errorf("metadata: engine %.140q: redis: %w", engine, a.err)
	}
	recs := make([]Record, len(a.found))
	for i, f := range a.found {
		recs[i] = f.rec
	}
	sortRanks(recs)
	return recs, nil
}

// List implements Store.
func (s *Redis) List(ctx context.Context) ([]string, error) {
	all, err := s.names(ctx)
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
				for rank := range x.ranks {
					keys = append(keys, s.rankKey(x.Incarnation, rank))
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
