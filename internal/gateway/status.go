package gateway

import (
	"net/http"
	"time"

	"pdrouter/router"
)

// Status is the body of /status: what people look at, on the page and in pdrouter top.
type Status struct {
	Version string        `json:"version"`
	Commit  string        `json:"commit"`
	Now     time.Time     `json:"now"`
	Started time.Time     `json:"started_at"`
	Config  ConfigStatus  `json:"config"`
	Redis   *RedisStatus  `json:"redis,omitempty"` // nil: none is configured
	Clients ClientsStatus `json:"clients"`
	// Problems are what is wrong now, the more general first.
	Problems []Problem `json:"problems"`
	router.Status
}

// ConfigStatus is how the configuration is doing.
type ConfigStatus struct {
	Digest   string    `json:"digest"` // of the file in use
	Applied  time.Time `json:"applied_at"`
	Mistakes []string  `json:"mistakes,omitempty"` // why the last reload was refused; none if it was not
}

// RedisStatus is how the exchange with Redis is doing.
type RedisStatus struct {
	At      string `json:"at"`      // its address
	Reached bool   `json:"reached"` // by the latest exchange of each kind: records, limits, stored responses, load
}

// Status reports the state of the gateway.
func (g *Gateway) Status() Status {
	now := time.Now()
	s := Status{
		Version: g.options.Version, Commit: g.options.Commit, Now: now, Started: g.started, Status: g.router.Status(), Config: g.configStatus(), Clients: g.minute.status(now),
	}
	if g.redis != nil {
		s.Redis = &RedisStatus{At: g.redisAt, Reached: !g.exchanges(s.Stats).any()}
	}
	s.Problems = g.problems(s.Stats)
	return s
}

func (g *Gateway) configStatus() ConfigStatus {
	reloads := g.reloads.stats()
	return ConfigStatus{Digest: g.current.Load().l.Digest, Applied: reloads.At, Mistakes: reloads.Mistakes}
}

// exchanges are how those through Redis are doing.
func (g *Gateway) exchanges(s router.Stats) exchanges {
	return exchanges{at: g.redisAt, metadata: g.cache.Stats().Behind, limits: g.limiter.Stats().Behind, responses: g.responses.Stats().Behind, peers: s.Peers != nil && s.Peers.Behind}
}

func (g *Gateway) statusRoute(w http.ResponseWriter, _ *http.Request) {
	writeJSON(w, http.StatusOK, g.Status())
}
