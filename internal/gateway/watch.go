package gateway

import (
	"context"
	"crypto/sha256"
	"errors"
	"maps"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"pdrouter/internal/configfile"
	"pdrouter/internal/fleetview"
	"pdrouter/internal/yamlfile"
)

// lookEvery is between two looks at the files. A change is believed at the second look that finds it, as whoever writes a
// file in place may be in the middle of it at the first.
const lookEvery = time.Second

// fileWatch knows the files that a reload reads: the configuration, and those it names that nothing else reads again. It finds
// a file by its name at each look, so that one whose folder is a link that is swapped, as Kubernetes does it, is found to
// have changed. It is safe for concurrent use.
type fileWatch struct {
	mu    sync.Mutex
	path  string
	named []string // of the configuration as it stands at path, sound or not
	seen  map[string]fingerprint
	used  sums // of the last reload
	last  sums // of the last look
}

// fingerprint is what a file was found to be.
type fingerprint struct {
	info os.FileInfo
	sum  [sha256.Size]byte
}

// sums are digests of files by name; a file that cannot be read is not among them.
type sums map[string][sha256.Size]byte

// newFileWatch begins with the configuration that is in use.
func newFileWatch(l *configfile.Loaded) *fileWatch {
	w := &fileWatch{path: l.Path, named: watched(&l.File), seen: map[string]fingerprint{}}
	w.used = w.look()
	if w.path != "" {
		w.used[w.path] = l.Sum // it may have changed since it was read
	}
	w.last = w.used
	return w
}

// changed looks at the files, and reports whether they are others than at the last reload, and no others than at the last
// look.
func (w *fileWatch) changed() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	last := w.last
	w.last = w.look()
	return maps.Equal(last, w.last) && !maps.Equal(w.used, w.last)
}

// reloading notes that the files are read now, for whatever reason: nothing is to be read twice for one change.
func (w *fileWatch) reloading() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.last = w.look()
	w.used = w.last
}

func (w *fileWatch) look() sums {
	now := sums{}
	before := w.seen[w.path].sum
	w.see(w.path, now)
	if p := w.seen[w.path]; p.info != nil && p.sum != before && before != [sha256.Size]byte{} {
		if b, err := os.ReadFile(w.path); err == nil {
			var c configfile.File
			yamlfile.Decode(w.path, b, &c) // mistakes are the reload's
			c.Resolve(filepath.Dir(w.path))
			w.named = watched(&c)
		}
	}
	for _, name := range w.named {
		w.see(name, now)
	}
	return now
}

// see adds the file's digest to now. It reads a file again only if something about it has changed.
func (w *fileWatch) see(name string, now sums) {
	info, err := os.Stat(name)
	if err != nil || !info.Mode().IsRegular() { // the reading of a pipe may never end
		delete(w.seen, name)
		return
	}
	p := w.seen[name]
	if p.info == nil || !os.SameFile(p.info, info) || !p.info.ModTime().Equal(info.ModTime()) || p.info.Size() != info.Size() {
		b, err := os.ReadFile(name)
		if err != nil {
			delete(w.seen, name)
			return
		}
		p = fingerprint{info, sha256.Sum256(b)}
		w.seen[name] = p
	}
	now[name] = p.sum
}

// watched are the files that c names and that are read with it alone. The others are read again by whoever uses them.
func watched(c *configfile.File) []string {
	var all []string
	for _, p := range c.Paths() {
		own := p.Key == "policy.file" || p.Key == "prefix_cache_secret_file" || strings.HasPrefix(p.Key, "listen.") || strings.HasPrefix(p.Key, "models[") && !strings.HasSuffix(p.Key, "_from.file") ||
			strings.HasSuffix(p.Key, ".development_secret_file")
		if own && *p.At != "" {
			all = append(all, *p.At)
		}
	}
	return all
}

// reloadChanged reloads on SIGHUP, and whenever the files have changed, until ctx ends.
func (g *Gateway) reloadChanged(ctx context.Context) error {
	hangup := make(chan os.Signal, 1)
	signal.Notify(hangup, syscall.SIGHUP)
	defer signal.Stop(hangup)
	look := time.NewTicker(lookEvery)
	defer look.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-hangup:
		case <-look.C:
			if !g.files.changed() {
				continue
			}
		}
		if _, err := g.controller.reload(ctx); errors.Is(err, fleetview.ErrStopping) {
			return nil // what else was wrong has been logged
		}
	}
}
