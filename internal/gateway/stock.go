package gateway

import (
	"context"
	"errors"
	"fmt"

	"pdrouter/metadata"
	"pdrouter/metadata/vllm"
	"pdrouter/router/fleet"
)

// SideChannels asks stock engines for the records of their ranks: the first one, or all.
type SideChannels interface {
	First(ctx context.Context, at fleet.SideChannel) (metadata.Record, error)
	All(ctx context.Context, at fleet.SideChannel) ([]metadata.Record, error)
}

// stockEngines asks over side channels, and keeps what it has learned in the store.
type stockEngines struct {
	SideChannels
	store   metadata.Store
	voucher metadata.Voucher // nil: records are stored unsigned
}

// vllmChannels asks as vLLM's engines do each other.
type vllmChannels struct{}

// First implements SideChannels.
func (vllmChannels) First(ctx context.Context, at fleet.SideChannel) (metadata.Record, error) {
	e, err := known(at)
	if err != nil {
		return metadata.Record{}, err
	}
	return e.First(ctx)
}

// All implements SideChannels.
func (vllmChannels) All(ctx context.Context, at fleet.SideChannel) ([]metadata.Record, error) {
	e, err := known(at)
	if err != nil {
		return nil, err
	}
	return e.All(ctx)
}

func known(at fleet.SideChannel) (vllm.Engine, error) {
	if at.EngineID == "" {
		return vllm.Unknown(at.Host, at.Port)
	}
	return vllm.Reported(at.EngineID, at.Host, at.Port, at.Size)
}

// Known implements monitor.Stock.
func (s stockEngines) Known(ctx context.Context, engine string) []metadata.Record {
	recs, err := s.store.Engine(ctx, engine)
	if err != nil {
		return nil
	}
	return recs
}

// Publish implements monitor.Stock.
func (s stockEngines) Publish(ctx context.Context, recs []metadata.Record) error {
	for _, rec := range recs {
		if s.voucher != nil {
			var err error
			if rec, err = rec.Sign(s.voucher); err != nil {
				return err
			}
		}
		if err := s.store.Put(ctx, rec); err != nil {
			return fmt.Errorf("publish: %w", err)
		}
	}
	return nil
}

// Withdraw implements monitor.Stock.
func (s stockEngines) Withdraw(ctx context.Context, recs []metadata.Record) error {
	for _, rec := range recs {
		err := s.store.Delete(ctx, rec.Incarnation, rec.Rank)
		if err != nil && !errors.Is(err, metadata.ErrStale) && !errors.Is(err, metadata.ErrNotFound) {
			return fmt.Errorf("withdraw: %w", err)
		}
	}
	return nil
}
