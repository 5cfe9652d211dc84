package metadata

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
)

// The fields of an engine's hash: its newest generation, and per rank when its record was published.
const generationField = "generation"

// putScript stores one record unless something newer is known. The first answer is 1, or 0 with what is known.
//
//	KEYS  engine's hash · rank's value
//	ARGV  generation · published · rank · value · TTL in ms · fence kept in ms · channel · message
const putScript = `
local known = redis.call('HGET', KEYS[1], 'generation')
if known and ARGV[1] < known then return {0, 'generation', known} end
if not known or known < ARGV[1] then
  redis.call('DEL', KEYS[1])
  redis.call('HSET', KEYS[1], 'generation', ARGV[1])
else
  local published = redis.call('HGET', KEYS[1], ARGV[3])
  if published and ARGV[2] <= published then return {0, 'published', published} end
end
redis.call('HSET', KEYS[1], ARGV[3], ARGV[2])
redis.call('PEXPIRE', KEYS[1], ARGV[6])
redis.call('SET', KEYS[2], ARGV[4], 'PX', ARGV[5])
redis.call('PUBLISH', ARGV[7], ARGV[8])
return {1}`

// deleteScript removes one record of one generation. It answers 1, 0 if there is none, -1 if a newer generation is
// known.
//
//	KEYS  engine's hash · rank's value
//	ARGV  generation · channel · message
const deleteScript = `
local known = redis.call('HGET', KEYS[1], 'generation')
if known and ARGV[1] < known then return -1 end
if redis.call('DEL', KEYS[2]) == 0 then return 0 end
redis.call('PUBLISH', ARGV[2], ARGV[3])
return 1`

// eval runs a script by its digest, and sends it if the server does not know it.
func (s *Redis) eval(ctx context.Context, script string, keys []string, args ...any) *redis.Cmd {
	return redis.NewScript(script).Run(ctx, s.db, keys, args...)
}

// Put implements Store.
func (s *Redis) Put(ctx context.Context, rec Record) error {
	if err := putable(rec); err != nil {
		return err
	}
	value, err := Marshal(rec)
	if err != nil {
		return err
	}
	rank := rec.Rank.String()
	got, err := s.eval(ctx, putScript, []string{s.engineKey(rec.Engine), s.rankKey(rec.Incarnation, rank)},
		padded(rec.Generation), padded(uint64(rec.Published.UnixNano())), rank, value, rec.Lifetime().Milliseconds(),
		fenceKept.Milliseconds(), s.channel(), message(Change{Incarnation: rec.Incarnation, Rank: rec.Rank})).Slice()
	if err != nil {
		return fmt.Errorf("metadata: engine %s rank %v: redis: %w", rec.Engine, rec.Rank, err)
	}
	if got[0] != int64(1) {
		return fmt.Errorf("metadata: engine %s rank %v: %v; known is %v: %w", rec.Engine, rec.Rank, got[1], got[2], ErrStale)
	}
	// The index only tells List where to look; in a cluster it lies in another slot, so it is not the script's.
	until := float64(time.Now().Add(max(rec.Lifetime(), fenceKept)).UnixMilli())
	if err := s.db.ZAdd(ctx, s.indexKey(), redis.Z{Score: until, Member: rec.Engine}).Err(); err != nil {
		return fmt.Errorf("metadata: engine %s rank %v: redis: %w", rec.Engine, rec.Rank, err)
	}
	return nil
}

// Engine implements Store.
func (s *Redis) Engine(ctx context.Context, engine string) ([]Record, error) {
	recs, err := s.read(ctx, engine)
	if err == nil && len(recs) == 0 {
		err = ErrNotFound
	}
	if err != nil {
		return nil, fmt.Errorf("metadata: engine %.140q: redis: %w", engine, err)
	}
	return recs, nil
}

func (s *Redis) read(ctx context.Context, engine string) ([]Record, error) {
	if ValidName(engine) != nil {
		return nil, ErrNotFound
	}
	fields, err := s.db.HGetAll(ctx, s.engineKey(engine)).Result()
	if err != nil || len(fields) == 0 {
		return nil, err
	}
	generation, err := parsePadded(fields[generationField])
	if err != nil {
		s.quarantine(engine, "", err)
		return nil, nil
	}
	delete(fields, generationField)
	if len(fields) > MaxRanks {
		s.quarantine(engine, "", fmt.Errorf("%d ranks; want at most %d", len(fields), MaxRanks))
		return nil, nil
	}
	inc := Incarnation{Engine: engine, Generation: generation}
	values := make(map[string]*redis.StringCmd, len(fields))
	if _, err := s.db.Pipelined(ctx, func(p redis.Pipeliner) error {
		for rank := range fields { // no more of a value than a record may have, and one byte that shows that it has more
			values[rank] = p.GetRange(ctx, s.rankKey(inc, rank), 0, MaxRecordBytes)
		}
		return nil
	}); err != nil {
		return nil, err
	}
	var recs []Record
	for rank, value := range values {
		if value.Val() == "" {
			continue // the lease is over
		}
		rec, err := s.trusted([]byte(value.Val()), inc, rank)
		if err != nil {
			s.quarantine(engine, rank, err)
			continue
		}
		recs = append(recs, rec)
	}
	sortRanks(recs)
	return recs, nil
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

// List implements Store.
func (s *Redis) List(ctx context.Context) ([]string, error) {
	now := strconv.FormatInt(time.Now().UnixMilli(), 10)
	var found *redis.StringSliceCmd
	if _, err := s.db.Pipelined(ctx, func(p redis.Pipeliner) error {
		p.ZRemRangeByScore(ctx, s.indexKey(), "-inf", "("+now)
		found = p.ZRange(ctx, s.indexKey(), 0, -1)
		return nil
	}); err != nil {
		return nil, fmt.Errorf("metadata: redis: list: %w", err)
	}
	var names []string
	for _, name := range found.Val() {
		live, err := s.live(ctx, name)
		if err != nil {
			return nil, fmt.Errorf("metadata: redis: list: %w", err)
		}
		if live {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names, nil
}

// live reports whether any rank's lease of an engine's newest generation is running.
func (s *Redis) live(ctx context.Context, engine string) (bool, error) {
	if ValidName(engine) != nil {
		return false, nil
	}
	fields, err := s.db.HGetAll(ctx, s.engineKey(engine)).Result()
	if err != nil {
		return false, err
	}
	generation, err := parsePadded(fields[generationField])
	if err != nil {
		return false, nil
	}
	delete(fields, generationField)
	var keys []string
	for rank := range fields {
		keys = append(keys, s.rankKey(Incarnation{Engine: engine, Generation: generation}, rank))
	}
	if len(keys) == 0 || len(keys) > MaxRanks {
		return false, nil
	}
	n, err := s.db.Exists(ctx, keys...).Result()
	return n > 0, err
}

// Delete implements Store.
func (s *Redis) Delete(ctx context.Context, inc Incarnation, rank Rank) error {
	got, err := s.eval(ctx, deleteScript, []string{s.engineKey(inc.Engine), s.rankKey(inc, rank.String())},
		padded(inc.Generation), s.channel(), message(Change{Incarnation: inc, Rank: rank, Deleted: true})).Int()
	switch {
	case err != nil:
		err = fmt.Errorf("redis: %w", err)
	case got == 0:
		err = ErrNotFound
	case got < 0:
		err = ErrStale
	default:
		return nil
	}
	return fmt.Errorf("metadata: engine %.140q rank %v: %w", inc.Engine, rank, err)
}

// Watch implements Store. While the server cannot be reached it returns an error at once; a subscription that was lost
// and is there again is announced as a Change without engine.
func (s *Redis) Watch(ctx context.Context, changed func(Change)) error {
	sub := s.db.Subscribe(ctx, s.channel())
	defer sub.Close()
	unblock := context.AfterFunc(ctx, func() { sub.Close() }) // a read of the subscription does not heed ctx
	defer unblock()
	for {
		got, err := sub.Receive(ctx)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err != nil {
			return fmt.Errorf("metadata: redis: watch: %w", err)
		}
		switch m := got.(type) {
		case *redis.Subscription:
			changed(Change{})
		case *redis.Message:
			c, err := parseMessage(m.Payload)
			if err != nil {
				s.quarantine("", "", err)
				continue
			}
			changed(c)
		}
	}
}

// message writes a change as "put|delete generation rank engine".
func message(c Change) string {
	verb := "put"
	if c.Deleted {
		verb = "delete"
	}
	return verb + " " + padded(c.Generation) + " " + c.Rank.String() + " " + c.Engine
}

// parseMessage is the inverse of message for bytes from anywhere.
func parseMessage(s string) (Change, error) {
	f := strings.Split(s, " ")
	if len(f) != 4 || f[0] != "put" && f[0] != "delete" {
		return Change{}, fmt.Errorf("announcement %.80q is not verb, generation, rank, engine", s)
	}
	generation, err := parsePadded(f[1])
	if err != nil {
		return Change{}, err
	}
	rank, err := ParseRank(f[2])
	if err != nil {
		return Change{}, err
	}
	c := Change{Incarnation: Incarnation{Engine: f[3], Generation: generation}, Rank: rank, Deleted: f[0] == "delete"}
	return c, ValidName(f[3])
}
