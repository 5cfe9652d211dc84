package limits

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"

	"pdrouter/internal/redisdb"
)

// redisExchange keeps each tenant's counts in one hash, so that in a cluster a tenant is in one slot. The key ends by itself
// when there is nothing left to remember.
type redisExchange struct {
	db     redisdb.Client
	prefix string
}

// swapScript takes in one report and answers with what all gateways have counted. Durations of charges are in ns. Fields of
// the hash:
//
//	at                  when the counts were right, in µs of Redis's clock: it is the only one that gateways share
//	requests, tokens    what is owed to each bucket
//	<gateway>           "ends inFlight reserved requests tokens": a gateway's requests under way and what is reserved for them,
//	                    until when that is believed, and its sums. What is added is the difference to its sums here, so that
//	                    a report that is told twice counts once
//
// A clock that is set back refills nothing until it goes on, and what it had let others believe for longer than is possible
// is not believed. One that is set forward refills once, a minute's worth at most.
//
// ARGV: gateway, keep in µs, lost, inFlight, reserved; for each bucket taken, sum, seen.
const swapScript = `
local t = redis.call('TIME')
local now = t[1] * 1000000 + t[2]
local me, keep, lost = ARGV[1], tonumber(ARGV[2]), ARGV[3] == '1'
local h = redis.call('HGETALL', KEYS[1])
local at, owed, mine, others, elsewhere = nil, {0, 0}, nil, 0, 0
for i = 1, #h, 2 do
  local name, v = h[i], h[i + 1]
  if name == 'at' then at = tonumber(v)
  elseif name == 'requests' then owed[1] = tonumber(v)
  elseif name == 'tokens' then owed[2] = tonumber(v)
  else
    local ends, n, reserved, r, k = string.match(v, '^(%S+) (%S+) (%S+) (%S+) (%S+)$')
    ends = tonumber(ends)
    if name == me then mine = {tonumber(r), tonumber(k)}
    elseif ends < now or ends > now + 2 * keep then redis.call('HDEL', KEYS[1], name)
    else others, elsewhere = others + tonumber(n), elsewhere + tonumber(reserved) end
  end
end
local dt, lasts = 0, 0
if at and now > at then dt = (now - at) * 1000 end
for b = 1, 2 do
  local taken, sum, seen = tonumber(ARGV[3 * b + 3]), tonumber(ARGV[3 * b + 4]), tonumber(ARGV[3 * b + 5])
  owed[b] = math.max(0, owed[b] - dt)
  if at and not lost then
    owed[b] = math.max(0, owed[b] + sum - (mine and mine[b] or taken))
  else
    owed[b] = math.max(owed[b], seen)
  end
  lasts = math.max(lasts, owed[b])
end
local function whole(n) return string.format('%.0f', n) end
redis.call('HSET', KEYS[1], 'at', whole(now), 'requests', whole(owed[1]), 'tokens', whole(owed[2]),
  me, whole(now + keep) .. ' ' .. table.concat({ARGV[4], ARGV[5], ARGV[7], ARGV[10]}, ' '))
redis.call('PEXPIRE', KEYS[1], whole(math.ceil(math.min(lasts / 1000000, 1e12) + keep / 1000)))
return {whole(owed[1]), whole(owed[2]), whole(others), whole(elsewhere)}
`

// swap implements exchange: one pipeline, and a second one for those servers that do not know the script any more. Each
// report is judged by itself, as in a cluster some servers may be down; the error is the first.
func (r *redisExchange) swap(ctx context.Context, reports []report) error {
	script := redis.NewScript(swapScript)
	all := make([]int, len(reports))
	for i := range all {
		all[i] = i
	}
	unknown, err := r.pipe(ctx, reports, all, script.EvalSha)
	if len(unknown) > 0 {
		_, again := r.pipe(ctx, reports, unknown, script.Eval)
		err = cmp.Or(err, again)
	}
	if err != nil {
		return fmt.Errorf("limits: redis: %w", err)
	}
	return nil
}

type evaluate func(ctx context.Context, c redis.Scripter, keys []string, args ...any) *redis.Cmd

// pipe tells these reports. It returns those of whose servers the script is unknown, and what else went wrong first.
func (r *redisExchange) pipe(ctx context.Context, reports []report, these []int, eval evaluate) (unknown []int, first error) {
	pipe := r.db.Pipeline()
	asked := make([]*redis.Cmd, len(these))
	for n, i := range these {
		asked[n] = eval(ctx, pipe, []string{r.prefix + reports[i].key}, reports[i].args()...)
	}
	_, _ = pipe.Exec(ctx) // each command has its own error
	for n, i := range these {
		got, err := asked[n].StringSlice()
		switch {
		case redis.HasErrorPrefix(err, "NOSCRIPT"):
			unknown = append(unknown, i)
			continue
		case err == nil:
			err = reports[i].take(got)
		}
		first = cmp.Or(first, err)
	}
	return unknown, first
}

func (r *report) args() []any {
	lost := "0"
	if r.lost {
		lost = "1"
	}
	args := make([]any, 0, 5+3*buckets)
	args = append(args, r.from, keep.Microseconds(), lost, r.mine.inFlight, int64(r.mine.reserved))
	for b := range buckets {
		args = append(args, int64(r.taken[b]), int64(r.sum[b]), int64(r.seen[b]))
	}
	return args
}

// take reads what the script returns.
func (r *report) take(got []string) error {
	var n [buckets + 2]int64
	if len(got) != len(n) {
		return fmt.Errorf("the script returned %d values", len(got))
	}
	var errs error
	for i := range n {
		var err error
		n[i], err = strconv.ParseInt(got[i], 10, 64)
		errs = errors.Join(errs, err)
	}
	if errs != nil {
		return fmt.Errorf("the script's answer: %w", errs)
	}
	r.owed = [buckets]time.Duration{time.Duration(n[requests]), time.Duration(n[tokens])}
	r.others, r.known = load{int(n[buckets]), time.Duration(n[buckets+1])}, true
	return nil
}
