package exercise

import (
	"context"
	"errors"
	"net"
	"time"

	"pdrouter/internal/refengine"
	"pdrouter/metadata"
	routerfleet "pdrouter/router/fleet"
)

// fleet is the engines, which hand KV over in stock vLLM's way.
type fleet struct {
	engines map[string]*refengine.Engine
	at      map[string]string // addresses
	pull    *refengine.Pull   // by which they hand KV over
	stop    context.CancelFunc
	ended   []chan error
}

func startFleet() (*fleet, error) {
	ctx, stop := context.WithCancel(context.Background())
	f := &fleet{engines: map[string]*refengine.Engine{}, at: map[string]string{}, pull: new(refengine.Pull), stop: stop}
	for _, name := range append(append([]string{}, prefill...), decode...) {
		e, err := refengine.New(refengine.Config{
			Name: name, Model: model, Pull: f.pull, PrefixCache: true, Blocks: 2048, Shape: refengine.Shape{Layers: 1, Heads: 1, HeadDim: 2},
			PrefillCost: 20 * time.Microsecond, DecodeCost: 2 * time.Millisecond,
		})
		if err != nil {
			return nil, errors.Join(err, f.close())
		}
		f.engines[name] = e
		ln, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return nil, errors.Join(err, f.close())
		}
		f.at[name] = ln.Addr().String()
		ended := make(chan error, 1)
		f.ended = append(f.ended, ended)
		go func() { ended <- refengine.NewServer(e).Serve(ctx, ln, time.Second) }()
	}
	return f, nil
}

// First and All answer in place of side channels, which the engines do not have.
func (f *fleet) First(_ context.Context, at routerfleet.SideChannel) (metadata.Record, error) {
	return f.pull.First(at.Port)
}

func (f *fleet) All(ctx context.Context, at routerfleet.SideChannel) ([]metadata.Record, error) {
	r, err := f.First(ctx, at)
	return []metadata.Record{r}, err
}

// inject has one of the faults begin.
func (f *fleet) inject(fault string) {
	switch fault {
	case "slow-pair":
		f.engines["decode-0"].SetFaults(refengine.Fault{Leg: refengine.ImportLeg, Nth: -1, Do: refengine.Late, Wait: time.Second, From: "prefill-1"})
	case "recompute":
		f.engines["decode-1"].SetFaults(refengine.Fault{Leg: refengine.ImportLeg, Nth: -1, Do: refengine.Recompute})
	}
}

func (f *fleet) close() (err error) {
	f.stop()
	for _, ended := range f.ended {
		err = errors.Join(err, <-ended)
	}
	for _, e := range f.engines {
		err = errors.Join(err, e.Close(context.Background()))
	}
	return err
}
