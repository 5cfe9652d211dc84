package redisstore

import (
	"context"
	"crypto/rand"
	"fmt"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"

	"pdrouter/metadata"
)

// The fields of an engine's hash: its newest generation, and per rank when its record was published, followed by the
// call that published it and by what the record says; or by a mark that it was withdrawn. Who reads sees in it whether the
// value is worth fetching.
const (
	generationField = "generation"
	withdrawnMark   = "-"
)

// putScript stores one record unless something newer is known. The first answer is 1, or 0 with what is known. A call
// that is sent again, because its answer was lost, succeeds again.
//
//	KEYS  engine's hash · rank's value
//	ARGV  generation · published, call and content · rank · value · TTL in ms · fence kept in ms · channel · message
const putScript = `
local known = redis.call('HGET', KEYS[1], 'generation')
if known and ARGV[1] < known then return {0, 'generation', known} end
if not known or known < ARGV[1] then
  redis.call('DEL', KEYS[1])
  redis.call('HSET', KEYS[1], 'generation', ARGV[1])
else
  local published = redis.call('HGET', KEYS[1], ARGV[3])
  if published == ARGV[2] then return {1} end
  if published and string.sub(ARGV[2], 1, 20) <= string.sub(published, 1, 20) then
    return {0, 'published', string.sub(published, 1, 20)}
  end
end
redis.call('HSET', KEYS[1], ARGV[3], ARGV[2])
redis.call('PEXPIRE', KEYS[1], ARGV[6])
redis.call('SET', KEYS[2], ARGV[4], 'PX', ARGV[5])
redis.call('PUBLISH', ARGV[7], ARGV[8])
return {1}`

// deleteScript removes one record of one generation, marks it as withdrawn for those who do not hear of it, and announces
// which one it was. It answers 1, 0 if there is none, -1 if a newer generation is known.
//
//	KEYS  engine's hash · rank's value
//	ARGV  generation · rank · mark · channel · message without the last two words
const deleteScript = `
local known = redis.call('HGET', KEYS[1], 'generation')
if known and ARGV[1] < known then return -1 end
if redis.call('DEL', KEYS[2]) == 0 then return 0 end
local published = redis.call('HGET', KEYS[1], ARGV[2])
if published then
  published = string.sub(published, 1, 20)
  redis.call('HSET', KEYS[1], ARGV[2], published .. ARGV[3])
end
redis.call('PUBLISH', ARGV[4], ARGV[5] .. ' ' .. (published or string.rep('0', 20)) .. ' -')
return 1`

// eval runs a script by its digest, and sends it if the server does not know it.
func (s *Store) eval(ctx context.Context, script string, keys []string, args ...any) *redis.Cmd {
	return redis.NewScript(script).Run(ctx, s.db, keys, args...)
}

// nonce returns 8 characters that no other call has.
func nonce() string { return rand.Text()[:8] }

// Put implements Store.
func (s *Store) Put(ctx context.Context, rec metadata.Record) error {
	if err := metadata.Storable(rec); err != nil {
		return err
	}
	value, err := metadata.Marshal(rec)
	if err != nil {
		return err
	}
	content, err := metadata.ContentOf(value)
	if err != nil {
		return fmt.Errorf("metadata: engine %s rank %v: %w", rec.Engine, rec.Rank, err)
	}
	rank := rec.Rank.String()
	got, err := s.eval(ctx, putScript, []string{s.engineKey(rec.Engine), s.rankKey(rec.Incarnation, rank)},
		padded(rec.Generation), padded(uint64(rec.Published.UnixNano()))+nonce()+content, rank, value, rec.Lifetime().Milliseconds(),
		metadata.FenceKept.Milliseconds(), s.channel(), message(metadata.Change{Incarnation: rec.Incarnation, Rank: rec.Rank, Published: rec.Published, Content: content})).Slice()
	if err != nil {
		return fmt.Errorf("metadata: engine %s rank %v: redis: %w", rec.Engine, rec.Rank, err)
	}
	if got[0] != int64(1) {
		err := error(metadata.ErrStale)
		if got[1] == "generation" {
			known, _ := strconv.ParseUint(fmt.Sprint(got[2]), 10, 64) // 0, for nothing known, if it is no number
			err = &metadata.Superseded{Generation: rec.Generation, Known: known}
		}
		return fmt.Errorf("metadata: engine %s rank %v: %v; known is %v: %w", rec.Engine, rec.Rank, got[1], got[2], err)
	}
	return s.indexed(ctx, rec)
}

// indexed enters the record's engine into the index, and cleans up there now and then. The index only tells where to look;
// in a cluster it lies in another slot, so it is not the script's.
func (s *Store) indexed(ctx context.Context, rec metadata.Record) error {
	now := time.Now()
	until := float64(now.Add(max(rec.Lifetime(), metadata.FenceKept)).UnixMilli())
	_, err := s.db.Pipelined(ctx, func(p redis.Pipeliner) error {
		p.ZAdd(ctx, s.indexKey(), redis.Z{Score: until, Member: rec.Engine})
		if last := s.swept.Load(); now.UnixNano()-last >= int64(indexSweep) && s.swept.CompareAndSwap(last, now.UnixNano()) {
			p.ZRemRangeByScore(ctx, s.indexKey(), "-inf", "("+strconv.FormatInt(now.UnixMilli(), 10))
		}
		return nil
	})
	if ofKey(err) { // the record is stored and announced
		s.quarantine.put(s.log, indexName, "", err)
		return nil
	}
	if err != nil {
		return fmt.Errorf("metadata: engine %s rank %v: redis: %w", rec.Engine, rec.Rank, err)
	}
	return nil
}

// Delete implements Store.
func (s *Store) Delete(ctx context.Context, inc metadata.Incarnation, rank metadata.Rank) error {
	got, err := s.eval(ctx, deleteScript, []string{s.engineKey(inc.Engine), s.rankKey(inc, rank.String())},
		padded(inc.Generation), rank.String(), withdrawnMark, s.channel(), messageHead(metadata.Change{Incarnation: inc, Rank: rank, Deleted: true})).Int()
	switch {
	case err != nil:
		err = fmt.Errorf("redis: %w", err)
	case got == 0:
		err = metadata.ErrNotFound
	case got < 0:
		err = metadata.ErrStale
	default:
		return nil
	}
	return fmt.Errorf("metadata: engine %.140q rank %v: %w", inc.Engine, rank, err)
}
