package gateway

import (
	"context"
	"log/slog"
	"net"
	"net/http"
	"time"
)

// httpServer returns what serves h on ln until its context ends, and then waits a moment for answers under way. Browsers
// cannot change anything here for a page of another origin.
func httpServer(ln net.Listener, h http.Handler, log *slog.Logger) func(context.Context) error {
	return func(ctx context.Context) error {
		srv := &http.Server{
			Handler:           sameOrigin(h, log),
			ReadHeaderTimeout: 10 * time.Second,
			ReadTimeout:       30 * time.Second,
			IdleTimeout:       2 * time.Minute,
			MaxHeaderBytes:    16 << 10,
			ErrorLog:          slog.NewLogLogger(log.Handler(), slog.LevelDebug),
		}
		if streams, ok := h.(interface{ Close() }); ok {
			srv.RegisterOnShutdown(streams.Close) // they would last out the moment that others are given
		}
		ended := make(chan error, 1)
		go func() { ended <- srv.Serve(ln) }()
		select {
		case err := <-ended:
			return err
		case <-ctx.Done():
		}
		grace, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Second)
		defer cancel()
		err := srv.Shutdown(grace)
		if err != nil {
			err = srv.Close()
		}
		<-ended
		return err
	}
}
