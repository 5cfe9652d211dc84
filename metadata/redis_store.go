package metadata

import (
	"context"
	"crypto/rand"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"
)

// The fields of an engine's hash: its newest generation, and per rank when its record was published, followed by the
// call that published it.
const generationField = "generation"

// putScript stores one record unless something newer is known. The first answer is 1, or 0 with what is known. A call
// that is sent again, because its answer was lost, succeeds again.
//
//	KEYS  engine's hash · rank's value
//	ARGV  generation · published and call · rank · value · TTL in ms · fence kept in ms · channel · message
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

// nonce returns 8 characters that no other call has.
func nonce() string { return rand.Text()[:8] }

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
		padded(rec.Generation), padded(uint64(rec.Published.UnixNano()))+nonce(), rank, value, rec.Lifetime().Milliseconds(),
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
