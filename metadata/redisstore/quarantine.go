package redisstore

import (
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

// indexName stands for the index where an engine is named in the log.
const indexName = "(index)"

// Bounds of what the log says of values that are not used.
const (
	quarantineSaid  = time.Minute // of one engine, once in this time
	quarantineNames = 1024        // engines of which that is known; the others count as one
)

// quarantine counts what lies in Redis and cannot be used. The zero value has counted nothing. It is safe for concurrent use.
type quarantine struct {
	mu    sync.Mutex
	total uint64
	of    map[string]*quarantined
}

// quarantined is what was found of one engine.
type quarantined struct {
	said   time.Time
	unsaid int
}

func (q *quarantine) count() uint64 {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.total
}

// put counts a value that is not used, and logs it unless another one of its engine was just logged.
func (q *quarantine) put(log *slog.Logger, engine, rank string, err error) {
	if n := q.say(engine, time.Now()); n > 0 {
		log.Warn("metadata: redis: value not used", "engine", fmt.Sprintf("%.140s", engine), "rank", fmt.Sprintf("%.40s", rank), "err", err, "count", n)
	}
}

// say returns of how many values of the engine the log is to tell now.
func (q *quarantine) say(engine string, now time.Time) int {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.total++
	if q.of == nil {
		q.of = map[string]*quarantined{}
	}
	e := q.of[engine]
	if e == nil && len(q.of) >= quarantineNames {
		engine = ""
		e = q.of[engine]
	}
	if e == nil {
		e = &quarantined{}
		q.of[engine] = e
	}
	if e.unsaid++; now.Sub(e.said) < quarantineSaid {
		return 0
	}
	n := e.unsaid
	e.said, e.unsaid = now, 0
	return n
}

// ofKey reports whether the server is well and refused a command because of what lies under its key, as when the key is of
// another type: asking again is of no use, and other keys may be asked for.
func ofKey(err error) bool {
	var answered redis.Error
	if err == nil || !errors.As(err, &answered) || redis.IsMaxClientsError(err) {
		return false
	}
	text := answered.Error()
	return strings.Contains(text, "WRONGTYPE") || strings.HasPrefix(text, "ERR ") && !strings.Contains(text, "unknown command")
}
