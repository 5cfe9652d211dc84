package gateway

import (
	"errors"
	"net/http"
	"strings"
	"sync"
	"time"

	"pdrouter/internal/configfile"
	"pdrouter/internal/fleetview"
	"pdrouter/router/config"
)

// reloadCounts counts reloads. It is safe for concurrent use.
type reloadCounts struct {
	mu  sync.Mutex
	now reloadCount
}

// reloadCount is how often the configuration was read again, and what became of it.
type reloadCount struct {
	Applied, Refused uint64
	At               time.Time // when the one in use was taken into use
	Behind           bool      // the last one was refused
	Mistakes         []string  // why it was
}

func (c *reloadCounts) stats() reloadCount {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

func (c *reloadCounts) began(at time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now.At = at
}

func (c *reloadCounts) ended(at time.Time, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.now.Behind, c.now.Mistakes = err != nil, nil; err != nil {
		c.now.Refused++
		c.now.Mistakes = mistakes(err)
		return
	}
	c.now.Applied++
	c.now.At = at
}

// loadWhole reads the file at path and every file that it names, as serve would at its start, and reports all mistakes; those
// of files of engines only where old has not named them.
func loadWhole(path string, old *configfile.Loaded) (*configfile.Loaded, error) {
	l, err := configfile.Load(path)
	if err != nil {
		return nil, err
	}
	return l, l.CheckFiles(old)
}

// reread returns what reads the configuration again.
func (g *Gateway) reread(path string) func() (*configfile.Loaded, error) {
	return func() (*configfile.Loaded, error) {
		if path == "" {
			return nil, errors.New("there is no configuration file: the gateway learned its engines from its command line; restart it to change them")
		}
		g.files.reloading()
		return loadWhole(path, g.current.Load().l)
	}
}

// apply takes a configuration into use, merged being its engines with those that others know of. On an error nothing has
// changed. It is the owner's.
func (g *Gateway) apply(l *configfile.Loaded, merged config.Config) error {
	old := g.current.Load()
	if l == old.l {
		return g.router.Apply(merged, g.partsOf(old, merged))
	}
	if err := l.OnlyLive(old.l.Changes(l)); err != nil {
		return err
	}
	snap, err := g.newSnapshot(l, old)
	if err != nil {
		return err
	}
	if err := g.router.Reload(merged, g.partsOf(snap, merged)); err != nil {
		snap.discard(old)
		return err
	}
	g.settle(snap, old)
	return nil
}

// reloaded counts and logs what became of a reload. It is the owner's.
func (g *Gateway) reloaded(changed []string, err error) {
	g.reloads.ended(time.Now(), err)
	if err != nil {
		g.log.Error("the configuration was not taken into use, the one before stays", "why", mistakes(err))
		return
	}
	g.log.Info("the configuration was taken into use", "changed", changed)
}

// mistakes lists what is wrong, one by one.
func mistakes(err error) []string { return strings.Split(err.Error(), "\n") }

// reloadRoute answers POST /config/reload: 200 and the keys that have changed, or 400 and what is wrong with the file.
func (g *Gateway) reloadRoute(w http.ResponseWriter, r *http.Request) {
	changed, err := g.controller.reload(r.Context())
	answer, status := map[string][]string{"changed": changed}, http.StatusOK
	switch {
	case errors.Is(err, fleetview.ErrStopping):
		answer, status = map[string][]string{"mistakes": {err.Error()}}, http.StatusServiceUnavailable
	case err != nil:
		answer, status = map[string][]string{"mistakes": mistakes(err)}, http.StatusBadRequest
	}
	writeJSON(w, status, answer)
}
