package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"net"
	"net/http"
	"os"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"pdrouter/internal/refengine"
	"pdrouter/internal/reload"
	"pdrouter/kvplane/agent"
	"pdrouter/kvplane/control"
	"pdrouter/kvplane/transport"
	"pdrouter/kvplane/transport/byname"
	"pdrouter/metadata"
	"pdrouter/metadata/client"
)

func mockEngineCommand() *cobra.Command {
	c := &cobra.Command{Use: "mock-engine", Short: "Run one reference engine: a small model that needs no GPU.", Args: cobra.NoArgs}
	options := engineFlags(c.Flags())
	c.RunE = func(c *cobra.Command, _ []string) error {
		o, err := options()
		if err != nil {
			return err
		}
		return mockEngine(c.Context(), o, c.OutOrStdout())
	}
	return c
}

// mockEngine runs one reference engine until ctx ends: then it takes no more requests, lets those in flight and the
// transfers they owe come to their end, and withdraws its records.
func mockEngine(ctx context.Context, o engineOptions, out io.Writer) error {
	log := slog.New(slog.NewTextHandler(os.Stderr, nil)).With("engine", o.cfg.Name)
	p, err := openEngineProcess(ctx, o, log)
	if err != nil {
		return err
	}
	return p.run(ctx, out)
}

// openEngineProcess builds an engine process, and another one if its engine is known by a newer generation: a host whose clock went
// back starts with an older one than it had. That is done once, and before anything is served: who is superseded while it
// serves ends, so that two processes of one name do not take turns for ever.
func openEngineProcess(ctx context.Context, o engineOptions, log *slog.Logger) (*engineProcess, error) {
	p, err := newEngineProcess(o, log)
	if err != nil || p.publisher == nil {
		return p, err
	}
	var newer *metadata.Superseded
	if err := p.publisher.Begin(ctx); !errors.As(err, &newer) || newer.Known == math.MaxUint64 {
		return p, nil // whatever else is wrong, the publisher tries again
	}
	log.Warn("a newer generation of this engine is known: taking the next one; is the clock right?",
		"generation", newer.Generation, "known", newer.Known)
	if err := errors.Join(p.listener.Close(), p.control.Close(), p.close(ctx)); err != nil {
		return nil, err
	}
	o.cfg.Generation = newer.Known + 1
	return newEngineProcess(o, log)
}

// engineProcess is a reference engine with its listeners, built but not yet serving.
type engineProcess struct {
	options   engineOptions
	log       *slog.Logger
	transport *byname.Transports
	gpus      *gpus // nil: KV lies in the host's memory
	engine    *refengine.Engine
	publisher *client.Publisher   // nil without a gateway
	peers     agent.PeerDirectory // unused without a gateway
	events    *control.Broadcaster
	authorize func(*http.Request) error
	files     reload.Credentials // keys that are trusted

	listener, control net.Listener // control is nil without a gateway
}

// newEngineProcess opens the listeners, which name the engine in its records, and starts the engine. On an error
// nothing is left open.
func newEngineProcess(o engineOptions, log *slog.Logger) (_ *engineProcess, err error) {
	p := &engineProcess{options: o, log: log, events: control.NewBroadcaster(), files: reload.Credentials{Log: log}}
	defer func() {
		if err != nil {
			err = errors.Join(err, p.close(context.Background()))
		}
	}()
	if p.listener, err = net.Listen("tcp", o.listen); err != nil {
		return nil, err
	}
	o.cfg.Log = log
	if o.kvMemory == "vram" {
		if p.gpus, err = openGPUs(o.cfg.TP, log); err != nil {
			return nil, err
		}
		o.cfg.Device = p.gpus.allocate
	}
	if o.gateway == "" {
		p.engine, err = refengine.New(o.cfg)
		return p, err
	}
	if p.control, err = net.Listen("tcp", o.control); err != nil {
		return nil, err
	}
	if p.authorize, err = o.authorizer(&p.files); err != nil {
		return nil, err
	}
	records, err := o.records(&p.files)
	if err != nil {
		return nil, err
	}
	gateway, err := o.client(records)
	if err != nil {
		return nil, err
	}
	if p.transport, err = byname.Open(o.transport, p.gpus != nil, log); err != nil {
		return nil, fmt.Errorf("engine: %w", err)
	}
	p.peers = agent.PeerDirectory{Records: gateway.Directory(), Own: o.cfg.Name}
	o.cfg.Plane = refengine.Plane{
		Transport:    func(int) (transport.Transport, error) { return p.transport.New(), nil },
		Directory:    p.peers,
		Events:       p.events,
		SerialStarts: o.serialStarts,
		HTTP:         "http://" + o.advertised(p.listener.Addr()),
		Control:      "http://" + o.advertised(p.control.Addr()),
	}
	if records != nil {
		o.cfg.Plane.Tickets = records.Tickets()
	} else {
		log.Warn("the engine has no record keys: it takes legs without a ticket")
	}
	if p.engine, err = refengine.New(o.cfg); err != nil {
		return nil, err
	}
	p.publisher, err = client.NewPublisher(gateway, client.PublisherConfig{}, log, p.engine.Records()...)
	return p, err
}

// run serves until ctx ends or a part fails, and then ends every part, the engine's requests first.
func (p *engineProcess) run(ctx context.Context, out io.Writer) error {
	serving, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	ended := make(chan error, 1)
	go func() {
		err := refengine.NewServer(p.engine).Serve(serving, p.listener, p.options.drain)
		stop(err)
		ended <- err
	}()
	// The records and the control routes outlive the requests: peers need both until the last transfer is over.
	background, withdraw := context.WithCancel(context.WithoutCancel(ctx))
	defer withdraw()
	published := make(chan error, 1)
	var following sync.WaitGroup
	var controlServer *http.Server
	if p.publisher != nil {
		controlServer = &http.Server{
			Handler:           control.Handler(p.events, p.engine.CancelTransfer, p.authorize, p.log),
			ReadHeaderTimeout: 5 * time.Second,
			BaseContext:       func(net.Listener) context.Context { return background },
		}
		go func() {
			if err := controlServer.Serve(p.control); !errors.Is(err, http.ErrServerClosed) {
				stop(err)
			}
		}()
		following.Go(func() { p.peers.Follow(background, p.log) })
		following.Go(func() { _ = p.files.Run()(background) }) // it ends with background only
		go func() {
			err := p.publisher.Run(background)
			stop(err) // superseded: a newer generation has published
			published <- err
		}()
		select {
		case <-p.publisher.Ready():
		case <-serving.Done():
		}
	}
	if serving.Err() == nil {
		fmt.Fprintln(out, p.line())
	}
	<-serving.Done()
	err := <-ended
	bound, cancel := context.WithTimeout(background, p.options.drain)
	defer cancel()
	errs := []error{err, p.close(bound)}
	withdraw()
	following.Wait()
	if p.publisher != nil {
		if err := <-published; !errors.Is(err, context.Canceled) {
			errs = append(errs, err)
		}
		errs = append(errs, controlServer.Close())
	}
	if cause := context.Cause(serving); ctx.Err() == nil && !errors.Is(cause, context.Canceled) && !errors.Is(err, cause) {
		errs = append(errs, cause)
	}
	return errors.Join(errs...)
}

// line is what the process says when it serves.
func (p *engineProcess) line() string {
	o := p.options
	s := fmt.Sprintf("pdrouter mock-engine: %s serves %s as %s on http://%s, pp %d, tp %d, %d blocks of %d tokens",
		p.engine.Incarnation().ID(), o.cfg.Model, o.cfg.Role, p.listener.Addr(), o.cfg.PP, o.cfg.TP, o.cfg.Blocks, o.cfg.BlockTokens)
	if p.gpus != nil {
		s += fmt.Sprintf(" on %d GPUs", len(p.gpus.devices))
	}
	if p.publisher != nil {
		s += fmt.Sprintf(", transport %s, control on http://%s", p.transport.Name(), p.control.Addr())
	}
	return s
}

// close ends the engine and frees what newEngineProcess made.
func (p *engineProcess) close(ctx context.Context) error {
	var errs []error
	if p.engine != nil {
		errs = append(errs, p.engine.Close(ctx))
	} else {
		for _, l := range []net.Listener{p.listener, p.control} {
			if l != nil {
				errs = append(errs, l.Close())
			}
		}
	}
	if p.gpus != nil {
		errs = append(errs, p.gpus.close())
	}
	if p.transport != nil {
		errs = append(errs, p.transport.Close())
	}
	return errors.Join(errs...)
}
