package shared

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"pdrouter/internal/outage"
	"pdrouter/internal/redisdb"
)

// lookEvery is between two looks at a map.
const lookEvery = time.Second

// Map is a small set of entries that every gateway knows whole, such as which engines drain. It is safe for concurrent use.
type Map struct {
	db      redisdb.Client // nil: the map is this process's own
	key     string
	log     *slog.Logger
	signing signing
	wake    chan struct{} // has room for one: there is something to write
	outage  outage.Outage // Sync's

	mu      sync.Mutex
	entries map[string]entry
	newest  map[string]entry // with a signer: of each key what an older one does not replace, even where Redis has lost it
	waiting map[string]entry // to be written
}

// NewMap returns a map that is shared under the key of prefix and name while Watch runs. With db nil it is this process's
// own. With a signer, which may be nil, what no gateway has signed is ignored.
func NewMap(db redisdb.Client, prefix, name string, signer Signer, log *slog.Logger) *Map {
	return &Map{db: db, key: prefix + ":" + name, log: log, signing: signing{signer: signer, log: log}, wake: make(chan struct{}, 1),
		entries: map[string]entry{}, newest: map[string]entry{}, waiting: map[string]entry{}}
}

// Put enters an entry for as long as the lease: here at once, elsewhere a second or so later. The latest one of a key stands,
// until its lease ends.
func (m *Map) Put(key, value string, lease time.Duration) {
	now := time.Now()
	m.mu.Lock()
	it := entry{value: []byte(value), until: now.Add(lease), at: max(now.UnixNano(), m.newest[key].at+1)} // another gateway's clock may be ahead
	m.entries[key], m.waiting[key] = it, it
	if m.signing.signer != nil {
		m.newest[key] = it
	}
	m.mu.Unlock()
	select {
	case m.wake <- struct{}{}:
	default:
	}
}

// Refused is how many entries were ignored because no gateway had signed them so.
func (m *Map) Refused() uint64 { return m.signing.refused.Load() }

// All returns every entry, by key. The map is the caller's.
func (m *Map) All() map[string]string {
	now := time.Now()
	m.mu.Lock()
	defer m.mu.Unlock()
	all := make(map[string]string, len(m.entries))
	for key, it := range m.entries {
		if now.Before(it.until) {
			all[key] = string(it.value)
		}
	}
	return all
}

// Watch keeps the map up to date until ctx ends, and calls changed, one call after the other, with all entries whenever
// they are others than before; the first time as soon as they are known. It is to be called once.
func (m *Map) Watch(ctx context.Context, changed func(map[string]string)) error {
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	var last map[string]string
	for {
		_ = m.Sync(ctx) // it logs what fails
		if all := m.All(); last == nil || !maps.Equal(all, last) {
			last = all
			changed(maps.Clone(all))
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		case <-m.wake:
		}
	}
}

// Sync writes what waits and reads all, in one round trip. What is known here holds on, each entry until its lease ends, where Redis cannot be
// asked. It is for callers that keep the time themselves, in place of Watch; it must not be called twice at once.
func (m *Map) Sync(ctx context.Context) error {
	m.mu.Lock()
	round := m.waiting
	m.waiting = map[string]entry{}
	m.mu.Unlock()
	if m.db == nil {
		return nil
	}
	all, err := m.exchange(ctx, round)
	switch {
	case err == nil:
		m.outage.Over(m.log, "shared: gateways exchange entries again", "key", m.key)
	case !errors.Is(ctx.Err(), context.Canceled): // a caller that waits no longer is told of a Redis that hangs
		m.outage.Failed(m.log, "shared: gateways do not exchange entries; requests go on, and entries known here hold until their leases end", err, "key", m.key)
	}
	now := time.Now()
	m.mu.Lock()
	defer m.mu.Unlock()
	if err != nil {
		for key, it := range round {
			if _, again := m.waiting[key]; !again {
				m.waiting[key] = it
			}
		}
		return err
	}
	m.learnLocked(all, now)
	return nil
}

// learnLocked has the map be what Redis has. What is known here stays, and is written again, where that is older, or not
// what a gateway has signed.
func (m *Map) learnLocked(all map[string]left, now time.Time) {
	maps.DeleteFunc(m.newest, func(_ string, it entry) bool { return !now.Before(it.until) })
	was := m.entries
	m.entries = make(map[string]entry, len(all))
	for key, there := range all {
		if _, again := m.waiting[key]; again { // entered during the exchange, so Redis has an older one for now
			continue
		}
		it, err := m.signing.check(m.name(key), []byte(there.value), now, there.left)
		if err == nil && it.at < m.newest[key].at {
			err = errOlder
		}
		if err != nil {
			m.signing.refuse(m.name(key), err)
			ours, ok := was[key]
			if !ok { // Redis had lost it, and got back an older one
				ours, ok = m.newest[key]
			}
			if ok && now.Before(ours.until) {
				m.entries[key], m.waiting[key] = ours, ours
			}
			continue
		}
		m.entries[key] = it
		if m.signing.signer != nil {
			m.newest[key] = it
		}
	}
	maps.Copy(m.entries, m.waiting)
}

// name is what an entry is signed under.
func (m *Map) name(key string) string { return m.key + "\x00" + key }

// mapScript takes in changes and answers with all that holds: key, milliseconds left, value. Leases are by Redis's clock,
// the only one that gateways share.
//
// A change that is older than what Redis has changes nothing, but for one that claims to be of a time to come. The key ends with its last entry.
//
// ARGV: for each change its key, its lease in ms, when it was entered in ns, and its value.
const mapScript = `
local t = redis.call('TIME')
local now = t[1] * 1000 + math.floor(t[2] / 1000)
for i = 1, #ARGV, 4 do
  local at, was = ARGV[i + 2], string.match(redis.call('HGET', KEYS[1], ARGV[i]) or '', '^%d+@(%d+) ') or ''
  if was == '' or #was < #at or (#was == #at and was <= at) or tonumber(was) > (now + 3600000) * 1000000 then
    redis.call('HSET', KEYS[1], ARGV[i], string.format('%.0f', now + ARGV[i + 1]) .. '@' .. at .. ' ' .. ARGV[i + 3])
  end
end
local all, last, h = {}, 0, redis.call('HGETALL', KEYS[1])
for i = 1, #h, 2 do
  local ends, value = string.match(h[i + 1], '^(%d+)@?%d* (.*)$')
  if not ends or tonumber(ends) <= now then
    redis.call('HDEL', KEYS[1], h[i])
  else
    last = math.max(last, tonumber(ends))
    all[#all + 1] = h[i]
    all[#all + 1] = string.format('%.0f', ends - now)
    all[#all + 1] = value
  end
end
if last > now then redis.call('PEXPIRE', KEYS[1], string.format('%.0f', math.min(last - now, 1e12))) end
return all
`

type left struct {
	value string
	left  time.Duration
}

func (m *Map) exchange(ctx context.Context, round map[string]entry) (map[string]left, error) {
	ctx, cancel := context.WithTimeout(ctx, writeWithin)
	defer cancel()
	args := make([]any, 0, 4*len(round))
	for key, it := range round {
		value, err := m.signing.sign(m.name(key), it)
		if err != nil {
			m.signing.refuse(m.name(key), err)
			continue
		}
		args = append(args, key, max(time.Until(it.until).Milliseconds(), 1), it.at, value) // one that is over ends the one before
	}
	got, err := redis.NewScript(mapScript).Run(ctx, m.db, []string{m.key}, args...).StringSlice()
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
