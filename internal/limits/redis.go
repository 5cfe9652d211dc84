package limits

import (
	"context"
	"errors"
	"fmt"
	"strconv"

	"github.com/redis/go-redis/v9"

	"pdrouter/internal/redisdb"
)

// redisExchange keeps each tenant's counts in one hash, so that in a cluster a tenant is in one slot. The key ends by itself
// when there is nothing left to remember.
type redisExchange struct {
	db     redisdb.Client
	prefix string
}

// swapScript takes in one report and answers with what all gateways have counted. Fields of the hash:
//
//	at                  when the counts were right, in ms of Redis's clock: it is the only one that gateways share
//	requests, tokens    what is missing in each bucket
//	<gateway>           "ends inFlight requests tokens": a gateway's requests under way, until when they are believed, and its
//	                    sums. What is added is the difference to its sums here, so that a report that is told twice counts once
//
// ARGV: gateway, keep, lost; for each bucket its rate per second, taken, sum, seen; inFlight.
const swapScript = `
local t = redis.call('TIME')
local now = t[1] * 1000 + math.floor(t[2] / 1000)
local me, keep, lost = ARGV[1], tonumber(ARGV[2]), ARGV[3] == '1'
local h = redis.call('HGETALL', KEYS[1])
local at, spent, mine, others = nil, {0, 0}, nil, 0
for i = 1, #h, 2 do
  local name, v = h[i], h[i + 1]
  if name == 'at' then at = tonumber(v)
  elseif name == 'requests' then spent[1] = tonumber(v)
  elseif name == 'tokens' then spent[2] = tonumber(v)
  else
    local ends, n, r, k = string.match(v, '^(%S+) (%S+) (%S+) (%S+)$')
    ends = tonumber(ends)
    if name == me then mine = {tonumber(r), tonumber(k)}
    elseif ends < now or ends > now + 2 * keep then redis.call('HDEL', KEYS[1], name)
    else others = others + tonumber(n) end
  end
end
local dt, lasts = 0, 0
if at and now > at then dt = (now - at) / 1000 end
for b = 1, 2 do
  local rate, taken = tonumber(ARGV[4 * b]), tonumber(ARGV[4 * b + 1])
  local sum, seen = tonumber(ARGV[4 * b + 2]), tonumber(ARGV[4 * b + 3])
  spent[b] = math.max(0, spent[b] - rate * dt)
  if at and not lost then
    spent[b] = math.max(0, spent[b] + sum - (mine and mine[b] or taken))
  else
    spent[b] = math.max(spent[b], seen)
  end
  if rate > 0 then lasts = math.max(lasts, spent[b] / rate) end
end
redis.call('HSET', KEYS[1], 'at', now, 'requests', tostring(spent[1]), 'tokens', tostring(spent[2]),
  me, (now + keep) .. ' ' .. ARGV[12] .. ' ' .. ARGV[6] .. ' ' .. ARGV[10])
redis.call('PEXPIRE', KEYS[1], math.ceil(math.min(lasts, 1e9) * 1000) + keep)
return {tostring(spent[1]), tostring(spent[2]), tostring(others)}
`

// swap implements exchange: one pipeline, and a second one if Redis does not know the script any more.
func (r *redisExchange) swap(ctx context.Context, reports []report) error {
	script := redis.NewScript(swapScript)
	err := r.pipe(ctx, reports, script.EvalSha)
	if redis.HasErrorPrefix(err, "NOSCRIPT") {
		return r.pipe(ctx, reports, script.Eval)
	}
	return err
}

type evaluate func(ctx context.Context, c redis.Scripter, keys []string, args ...any) *redis.Cmd

// pipe tells the reports that are not yet known, and returns the first thing that went wrong.
func (r *redisExchange) pipe(ctx context.Context, reports []report, eval evaluate) error {
	pipe := r.db.Pipeline()
	asked := make([]*redis.Cmd, len(reports))
	for i := range reports {
		if rep := &reports[i]; !rep.known {
			asked[i] = eval(ctx, pipe, []string{r.prefix + rep.key}, rep.args()...)
		}
	}
	_, first := pipe.Exec(ctx)
	for i, cmd := range asked {
		if cmd == nil {
			continue
		}
		got, err := cmd.StringSlice()
		if err == nil {
			err = reports[i].take(got)
		}
		if err != nil && first == nil {
			first = err
		}
	}
	if first != nil && !redis.HasErrorPrefix(first, "NOSCRIPT") {
		return fmt.Errorf("limits: redis: %w", first)
	}
	return first
}

func (r *report) args() []any {
	lost := "0"
	if r.lost {
		lost = "1"
	}
	args := make([]any, 0, 12)
	args = append(args, r.from, keep.Milliseconds(), lost)
	for b := range buckets {
		args = append(args, rate(r.limits.of(b)), r.taken[b], r.sum[b], r.seen[b])
	}
	return append(args, r.inFlight)
}

// take reads what the script returns.
func (r *report) take(got []string) error {
	if len(got) != buckets+1 {
		return fmt.Errorf("the script returned %d values", len(got))
	}
	var spent [buckets]float64
	var err error
	for b := range spent {
		var e error
		spent[b], e = strconv.ParseFloat(got[b], 64)
		err = errors.Join(err, e)
	}
	others, e := strconv.Atoi(got[buckets])
	if err = errors.Join(err, e); err != nil {
		return fmt.Errorf("the script's answer: %w", err)
	}
	r.spent, r.others, r.known = spent, others, true
	return nil
}
