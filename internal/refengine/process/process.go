// Package process runs one reference engine as a process: its listeners, its records with a gateway, its control routes, its transport and its
// GPUs. It does not compute, which is internal/refengine's, and does not parse the command line, which the command pdrouter mock-engine does.
package process

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

	"pdrouter/internal/refengine"
	"pdrouter/internal/reload"
	"pdrouter/kvplane/agent"
	"pdrouter/kvplane/control"
	"pdrouter/kvplane/transport"
	"pdrouter/kvplane/transport/byname"
	"pdrouter/metadata"
	"pdrouter/metadata/client"
)

// Run runs one reference engine until ctx ends: then it takes no more requests, lets those in flight and the
// transfers they owe come to their end, and withdraws its records.
func Run(ctx context.Context, o Options, out io.Writer) error {
	log := slog.New(slog.NewTextHandler(os.Stderr, nil)).With("engine", o.Engine.Name)
	p, err := open(ctx, o, log)
	if err != nil {
		return err
	}
	return p.run(ctx, out)
}

// open builds an engine process, and another one if its engine is known by a newer generation: a host whose clock went
// back starts with an older one than it had. That is done once, and before anything is served: who is superseded while it
// serves ends, so that two processes of one name do not take turns for ever.
func open(ctx context.Context, o Options, log *slog.Logger) (*process, error) {
	p, err := newProcess(o, log)
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
	o.Engine.Generation = newer.Known + 1
	return newProcess(o, log)
}

// process is a reference engine with its listeners, built but not yet serving.
type process struct {
	options   Options
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

// newProcess opens the listeners, which name the engine in its records, and starts the engine. On an error
// nothing is left open.
func newProcess(o Options, log *slog.Logger) (_ *process, err error) {
	p := &process{options: o, log: log, events: control.NewBroadcaster(), files: reload.Credentials{Log: log}}
	defer func() {
		if err != nil {
			err = errors.Join(err, p.close(context.Background()))
		}
	}()
	if p.listener, err = net.Listen("tcp", o.Listen); err != nil {
		return nil, err
	}
	o.Engine.Log = log
	if o.KVMemory == "vram" {
		if p.gpus, err = openGPUs(o.Engine.TP, log); err != nil {
			return nil, err
		}
		o.Engine.Device = p.gpus.allocate
	}
	if o.Gateway == "" {
		p.engine, err = refengine.New(o.Engine)
		return p, err
	}
	if p.control, err = net.Listen("tcp", o.Control); err != nil {
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
	if p.transport, err = byname.Open(o.Transport, p.gpus != nil, log); err != nil {
		return nil, fmt.Errorf("engine: %w", err)
	}
	p.peers = agent.PeerDirectory{Records: gateway.Directory(), Own: o.Engine.Name}
	o.Engine.Plane = refengine.Plane{
		Transport:    func(int) (transport.Transport, error) { return p.transport.New(), nil },
		Directory:    p.peers,
		Events:       p.events,
		SerialStarts: o.SerialStarts,
		HTTP:         "http://" + o.advertised(p.listener.Addr()),
		Control:      "http://" + o.advertised(p.control.Addr()),
	}
	if records != nil {
		o.Engine.Plane.Tickets = records.Tickets()
	} else {
		log.Warn("the engine has no record keys: it takes legs without a ticket")
	}
	if p.engine, err = refengine.New(o.Engine); err != nil {
		return nil, err
	}
	p.publisher, err = client.NewPublisher(gateway, client.PublisherConfig{}, log, p.engine.Records()...)
	return p, err
}

// run serves until ctx ends or a part fails, and then ends every part, the engine's requests first.
func (p *process) run(ctx context.Context, out io.Writer) error {
	serving, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	ended := make(chan error, 1)
	go func() {
		err := refengine.NewServer(p.engine).Serve(serving, p.listener, p.options.Drain)
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
		controlServer = control.NewServer(background, control.Handler(p.events, p.engine.CancelTransfer, p.authorize, p.log), p.log)
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
	bound, cancel := context.WithTimeout(background, p.options.Drain)
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
func (p *process) line() string {
	o := p.options
	s := fmt.Sprintf("pdrouter mock-engine: %s serves %s as %s on http://%s, pp %d, tp %d, %d blocks of %d tokens",
		p.engine.Incarnation().ID(), o.Engine.Model, o.Engine.Role, p.listener.Addr(), o.Engine.PP, o.Engine.TP, o.Engine.Blocks, o.Engine.BlockTokens)
	if p.gpus != nil {
		s += fmt.Sprintf(" on %d GPUs", len(p.gpus.devices))
	}
	if p.publisher != nil {
		s += fmt.Sprintf(", transport %s, control on http://%s", p.transport.Name(), p.control.Addr())
	}
	return s
}

// close ends the engine and frees what newProcess made.
func (p *process) close(ctx context.Context) error {
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
