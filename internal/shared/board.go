package shared

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"pdrouter/internal/redisdb"
)

// lookEvery is between two looks at a board.
const lookEvery = time.Second

// Board is a small set of facts that every gateway knows whole, such as which engines drain. It is safe for concurrent use.
type Board struct {
	db    redisdb.Client // nil: the board is this process's own
	key   string
	log   *slog.Logger
	seals seals
	wake  chan struct{} // has room for one: there is something to write

	mu      sync.Mutex
	facts   map[string]fact
	newest  map[string]fact // with a signer: of each key what an older one does not replace, even where Redis has lost it
	waiting map[string]fact // to be written
	behind  bool
}

// NewBoard returns a board that is shared under the key of prefix and name while Watch runs. With db nil it is this process's
// own. With a signer, which may be nil, what no gateway has signed is ignored.
func NewBoard(db redisdb.Client, prefix, name string, signer Signer, log *slog.Logger) *Board {
	return &Board{db: db, key: prefix + ":" + name, log: log, seals: seals{signer: signer, log: log}, wake: make(chan struct{}, 1),
		facts: map[string]fact{}, newest: map[string]fact{}, waiting: map[string]fact{}}
}

// Put enters a fact for as long as the lease: here at once, elsewhere a second or so later. The latest one of a key stands,
// until its lease ends.
func (b *Board) Put(key, value string, lease time.Duration) {
	now := time.Now()
	b.mu.Lock()
	it := fact{value: []byte(value), until: now.Add(lease), at: max(now.UnixNano(), b.newest[key].at+1)} // another gateway's clock may be ahead
	b.facts[key], b.waiting[key] = it, it
	if b.seals.signer != nil {
		b.newest[key] = it
	}
	b.mu.Unlock()
	select {
	case b.wake <- struct{}{}:
	default:
	}
}

// Refused is how many facts were ignored because no gateway had signed them so.
func (b *Board) Refused() uint64 { return b.seals.refused.Load() }

// All returns every fact, by key. The map is the caller's.
func (b *Board) All() map[string]string {
	now := time.Now()
	b.mu.Lock()
	defer b.mu.Unlock()
	all := make(map[string]string, len(b.facts))
	for key, it := range b.facts {
		if now.Before(it.until) {
			all[key] = string(it.value)
		}
	}
	return all
}

// Watch keeps the board up to date until ctx ends, and calls changed, one call after the other, with all facts whenever
// they are others than before; the first time as soon as they are known. It is to be called once.
func (b *Board) Watch(ctx context.Context, changed func(map[string]string)) error {
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	var last map[string]string
	for {
		b.look(ctx)
		if all := b.All(); last == nil || !maps.Equal(all, last) {
			last = all
			changed(maps.Clone(all))
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		case <-b.wake:
		}
	}
}

// look writes what waits and reads all. What is known here holds on where Redis cannot be asked.
func (b *Board) look(ctx context.Context) {
	b.mu.Lock()
	round := b.waiting
	b.waiting = map[string]fact{}
	b.mu.Unlock()
	if b.db == nil {
		return
	}
	all, err := b.exchange(ctx, round)
	now := time.Now()
	b.mu.Lock()
	defer b.mu.Unlock()
	if err != nil {
		for key, it := range round {
			if _, again := b.waiting[key]; !again {
				b.waiting[key] = it
			}
		}
		if !b.behind && ctx.Err() == nil {
			b.log.Warn("what gateways have in common is not known", "board", b.key, "err", err)
			b.behind = true
		}
		return
	}
	if b.behind {
		b.log.Info("what gateways have in common is known again", "board", b.key)
		b.behind = false
	}
	b.learnLocked(all, now)
}

// learnLocked has the board be what Redis has. What is known here stays, and is written again, where that is older, or not
// what a gateway has signed.
func (b *Board) learnLocked(all map[string]left, now time.Time) {
	maps.DeleteFunc(b.newest, func(_ string, it fact) bool { return !now.Before(it.until) })
	was := b.facts
	b.facts = make(map[string]fact, len(all))
	for key, there := range all {
		it, err := b.seals.open(b.name(key), []byte(there.value), now, there.left)
		if err == nil && it.at < b.newest[key].at {
			err = errOlder
		}
		if err != nil {
			b.seals.refuse(b.name(key), err)
			ours, ok := was[key]
			if !ok { // Redis had lost it, and got back an older one
				ours, ok = b.newest[key]
			}
			if ok && now.Before(ours.until) {
				b.facts[key] = ours
				if _, again := b.waiting[key]; !again {
					b.waiting[key] = ours
				}
			}
			continue
		}
		b.facts[key] = it
		if b.seals.signer != nil {
			b.newest[key] = it
		}
	}
	maps.Copy(b.facts, b.waiting) // entered meanwhile
}

// name is what a fact is signed under.
func (b *Board) name(key string) string { return b.key + "\x00" + key }

// boardScript takes in changes and answers with all that holds: key, milliseconds left, value. Leases are by Redis's clock,
// the only one that gateways share.
//
// A change that is older than what Redis has changes nothing, but for one that claims to be of a time to come.
//
// ARGV: for each change its key, its lease in ms, when it was entered in ns, and its value.
const boardScript = `
local t = redis.call('TIME')
local now = t[1] * 1000 + math.floor(t[2] / 1000)
for i = 1, #ARGV, 4 do
  local at, was = ARGV[i + 2], string.match(redis.call('HGET', KEYS[1], ARGV[i]) or '', '^%d+@(%d+) ') or ''
  if was == '' or #was < #at or (#was == #at and was <= at) or tonumber(was) > (now + 3600000) * 1000000 then
    redis.call('HSET', KEYS[1], ARGV[i], string.format('%.0f', now + ARGV[i + 1]) .. '@' .. at .. ' ' .. ARGV[i + 3])
  end
end
local all, h = {}, redis.call('HGETALL', KEYS[1])
for i = 1, #h, 2 do
  local ends, value = string.match(h[i + 1], '^(%d+)@?%d* (.*)$')
  if not ends or tonumber(ends) <= now then
    redis.call('HDEL', KEYS[1], h[i])
  else
    all[#all + 1] = h[i]
    all[#all + 1] = string.format('%.0f', ends - now)
    all[#all + 1] = value
  end
end
return all
`

type left struct {
	value string
	left  time.Duration
}

func (b *Board) exchange(ctx context.Context, round map[string]fact) (map[string]left, error) {
	ctx, cancel := context.WithTimeout(ctx, writeWithin)
	defer cancel()
	args := make([]any, 0, 4*len(round))
	for key, it := range round {
		value, err := b.seals.close(b.name(key), it)
		if err != nil {
			b.seals.refuse(b.name(key), err)
			continue
		}
		args = append(args, key, max(time.Until(it.until).Milliseconds(), 1), it.at, value) // one that is over ends the one before
	}
	got, err := redis.NewScript(boardScript).Run(ctx, b.db, []string{b.key}, args...).StringSlice()
	if err != nil {
		return nil, fmt.Errorf("shared: redis: %w", err)
	}
	all := make(map[string]left, len(got)/3)
	for i := 0; i+2 < len(got); i += 3 {
		var ms int64
		if _, err := fmt.Sscan(got[i+1], &ms); err != nil {
			return nil, fmt.Errorf("shared: redis: lease of %q: %w", got[i], err)
		}
		all[got[i]] = left{got[i+2], time.Duration(ms) * time.Millisecond}
	}
	return all, nil
}
