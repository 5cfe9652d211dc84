package process

import (
	"errors"
	"fmt"
	"log/slog"

	"pdrouter/internal/cuda"
	"pdrouter/internal/refengine"
	"pdrouter/kvplane/memory"
)

// gpus is where an engine's ranks keep their KV: each has a GPU, counted round.
type gpus struct {
	library *cuda.Library
	devices []*cuda.Device
}

// openGPUs opens a GPU for each of ranks, as far as there are so many.
func openGPUs(ranks int, log *slog.Logger) (_ *gpus, err error) {
	g := &gpus{}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("engine: --kv-memory vram: %w", err), g.close())
		}
	}()
	if g.library, err = cuda.Open(""); err != nil {
		return nil, err
	}
	n, err := g.library.Devices()
	if err != nil {
		return nil, err
	}
	if n == 0 {
		return nil, errors.New("the driver has no GPU")
	}
	for i := range min(n, ranks) {
		d, err := g.library.Device(i)
		if err != nil {
			return nil, err
		}
		g.devices = append(g.devices, d)
		log.Info("KV memory", "device", d.Ordinal(), "name", d.Name(), "cuda", g.library.Version())
	}
	return g, nil
}

// allocate implements refengine.Device.
func (g *gpus) allocate(rank, n int) (refengine.DeviceMemory, memory.Region, error) {
	m, err := g.devices[rank%len(g.devices)].Alloc(n)
	if err != nil {
		return nil, memory.Region{}, err
	}
	return m, memory.On(m), nil
}

// close gives the GPUs back. The engine that used them is closed.
func (g *gpus) close() error {
	var errs []error
	for _, d := range g.devices {
		errs = append(errs, d.Close())
	}
	if g.library != nil {
		errs = append(errs, g.library.Close())
	}
	return errors.Join(errs...)
}
