package embed

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"time"

	"pdrouter/auth"
	"pdrouter/internal/field"
	"pdrouter/kvplane"
	"pdrouter/kvplane/control"
)

// controlServer serves an engine's control routes.
type controlServer struct {
	listener net.Listener
	server   *http.Server
	cancel   context.CancelFunc
	tasks    sync.WaitGroup

	mu       sync.Mutex
	closed   bool
	requests sync.WaitGroup // under way; none begins after closed
}

// validate reports every mistake, each by its key.
func (c Control) validate() error {
	var errs []error
	if c.URL != "" {
		errs = append(errs, field.Errorf("control.url", "is for ranks, which name it in their records; want control.listen"))
	}
	if c.Listen == "" {
		return errors.Join(errs...)
	}
	host, _, err := net.SplitHostPort(c.Listen)
	if err != nil {
		return errors.Join(append(errs, field.Errorf("control.listen", "is %.200q; want host:port", c.Listen))...)
	}
	if ip := net.ParseIP(host); len(c.Keys) == 0 && host != "localhost" && (ip == nil || !ip.IsLoopback()) {
		errs = append(errs, field.Errorf("control.keys", "is missing; control.listen is %s, and open control routes are for loopback only", c.Listen))
	}
	return errors.Join(errs...)
}

func openControl(c Config, keys *keyFiles, events *control.Broadcaster, cancel func(kvplane.TransferID, string), log *slog.Logger) (*controlServer, error) {
	authorize := func(*http.Request) error { return nil }
	if len(c.Control.Keys) > 0 {
		set, err := keys.load(c.Control.Keys)
		if err != nil {
			return nil, err
		}
		v, err := auth.NewVerifier(auth.VerifierConfig{Issuer: c.Control.Issuer, Audience: auth.MetadataAudience}, set)
		if err != nil {
			return nil, wrong(Refused, "embed: control: %w", err)
		}
		agents, err := auth.NewAgents(v)
		if err != nil {
			return nil, wrong(Refused, "embed: control: %w", err)
		}
		authorize = func(r *http.Request) error { return agents.Plane(r, c.Engine) }
	}
	listener, err := net.Listen("tcp", c.Control.Listen)
	if err != nil {
		return nil, wrong(System, "embed: control.listen: %w", err)
	}
	ctx, stop := context.WithCancel(context.Background())
	k := &controlServer{listener: listener, cancel: stop}
	k.server = control.NewServer(ctx, k.counted(control.Handler(events, cancel, authorize, log)), log)
	k.tasks.Go(func() {
		if err := k.server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
			log.Error("control routes", "err", err)
		}
	})
	return k, nil
}

// counted knows which requests are under way, which http.Server.Close does not wait for.
func (k *controlServer) counted(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		k.mu.Lock()
		if k.closed {
			k.mu.Unlock()
			return
		}
		k.requests.Add(1)
		k.mu.Unlock()
		defer k.requests.Done()
		h.ServeHTTP(w, r)
	})
}

func (k *controlServer) address() string { return k.listener.Addr().String() }

// close ends every stream and waits for the server and its requests.
func (k *controlServer) close() error {
	k.cancel()
	k.mu.Lock()
	k.closed = true
	k.mu.Unlock()
	bound, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	err := k.server.Shutdown(bound)
	if err != nil {
		err = k.server.Close()
	}
	k.tasks.Wait()
	k.requests.Wait()
	return err
}
