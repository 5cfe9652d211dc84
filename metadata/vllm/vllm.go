// Package vllm asks stock vLLM engines for the metadata of their ranks, over the side channel at which the engines ask
// each other, and makes records of the answers.
//
// It asks only for ranks that exist: nobody can name a rank, and an engine's size is what the engine itself has said.
// It publishes nothing and keeps nothing; internal/gateway puts it between the router and the store.
package vllm

import (
	"context"
	"fmt"
	"net"
	"strconv"
	"time"

	"pdrouter/internal/zmtp"
	"pdrouter/metadata"
)

// askFor bounds one ask whose context has no deadline.
const askFor = 5 * time.Second

// Engine is one run of an engine, as far as its side channel is concerned. The zero value has no rank that could be
// asked. It is safe for concurrent use.
type Engine struct {
	id   string // "" if it is not known
	host string
	port int           // of data-parallel rank 0; rank d listens d ports further
	size metadata.Rank // zero: only the first rank is known to exist
}

// Reported returns the engine that has said of itself that it is id, listens at host:port, and has size ranks along
// each axis. Values that it has not said itself must not be passed.
func Reported(id, host string, port int, size metadata.Rank) (Engine, error) {
	e := Engine{id: id, host: host, port: port, size: size}
	switch ranks := size.DP * size.PP * size.TP; {
	case id == "":
		return Engine{}, fmt.Errorf("vllm: engine at %s has no id", e.address(0))
	case min(size.DP, size.PP, size.TP) < 1 || max(size.DP, size.PP, size.TP) > metadata.MaxRanks || ranks > metadata.MaxRanks:
		return Engine{}, fmt.Errorf("vllm: engine %s: size is %v; want at least 1 along each axis and at most %d ranks", id, size, metadata.MaxRanks)
	}
	return e, e.reachable()
}

// Unknown returns an engine of which nothing is known but where it listens. Only its first rank, which every engine has,
// will be asked.
func Unknown(host string, port int) (Engine, error) {
	e := Engine{host: host, port: port}
	return e, e.reachable()
}

func (e Engine) reachable() error {
	if e.host == "" || e.port < 1 || e.port+max(e.size.DP, 1)-1 > 65535 {
		return fmt.Errorf("vllm: side channel is %q; want a host and a port", e.address(0))
	}
	return nil
}

// address returns where data-parallel rank dp listens.
func (e Engine) address(dp int) string { return net.JoinHostPort(e.host, strconv.Itoa(e.port+dp)) }

// First returns the record of the engine's first rank. The engine may be another run than the one that was named:
// EngineID says which. Names, role, connector, HTTP address and times are the caller's to fill in, and the size, if it is
// not known. It blocks until the engine has answered or ctx ends, 5 s if that has no deadline.
func (e Engine) First(ctx context.Context) (metadata.Record, error) {
	if e.port == 0 {
		return metadata.Record{}, fmt.Errorf("vllm: no engine to ask")
	}
	var rec metadata.Record
	err := e.talk(ctx, 0, func(c *zmtp.Conn) (err error) {
		rec, err = e.ask(c, metadata.Rank{})
		return err
	})
	return rec, err
}

// All returns the records of all ranks, in their order, as First does. Whatever run of the engine answers, no rank is
// asked that the named run does not have: if another one answers for the first rank, that is all it is asked, and the
// error is a *MovedError.
func (e Engine) All(ctx context.Context) ([]metadata.Record, error) {
	if e.id == "" {
		return nil, fmt.Errorf("vllm: engine at %q has not said how many ranks it has", e.address(0))
	}
	recs := make([]metadata.Record, 0, e.size.DP*e.size.PP*e.size.TP)
	for dp := range e.size.DP {
		err := e.talk(ctx, dp, func(c *zmtp.Conn) error {
			for pp := range e.size.PP {
				for tp := range e.size.TP {
					rec, err := e.ask(c, metadata.Rank{DP: dp, PP: pp, TP: tp})
					if err != nil {
						return err
					}
					if first := len(recs) == 0; first && rec.EngineID != e.id || !first && dp == 0 && rec.EngineID != recs[0].EngineID {
						return &MovedError{Was: e.id, Is: rec.EngineID}
					}
					recs = append(recs, rec)
				}
			}
			return nil
		})
		if err != nil {
			return nil, err
		}
	}
	return recs, nil
}

// MovedError says that another run of an engine has answered than the one that was asked for.
type MovedError struct{ Was, Is string }

// Error names both runs.
func (e *MovedError) Error() string {
	return fmt.Sprintf("vllm: engine %.80q was started anew: now it is %.80q", e.Was, e.Is)
}

// talk opens a connection to data-parallel rank dp, has f use it, and closes it.
func (e Engine) talk(ctx context.Context, dp int, f func(*zmtp.Conn) error) error {
	ctx, cancel := context.WithTimeout(ctx, askFor)
	defer cancel()
	c, err := zmtp.Dial(ctx, e.address(dp), "REQ")
	if err == nil {
		err = f(c)
		c.Close()
	}
	if err != nil {
		if cause := context.Cause(ctx); cause != nil {
			err = cause
		}
		return fmt.Errorf("vllm: side channel %s: %w", e.address(dp), err)
	}
	return nil
}

// ask asks for one rank, which must exist.
func (e Engine) ask(c *zmtp.Conn, rank metadata.Rank) (metadata.Record, error) {
	parts, err := request(c, question(rank))
	if err != nil {
		return metadata.Record{}, fmt.Errorf("rank %v: %w", rank, err)
	}
	rec, err := parse(parts[0])
	if err != nil {
		return metadata.Record{}, fmt.Errorf("rank %v: %w", rank, err)
	}
	rec.Rank, rec.Size, rec.Side = rank, e.size, e.address(rank.DP)
	return rec, nil
}

// question is the request for one rank: msgpack of a name, as bytes, and two indices.
func question(rank metadata.Rank) []byte {
	b := append([]byte{0x93, 0xc4, 12}, "get_meta_msg"...)
	return appendIndex(appendIndex(b, rank.PP), rank.TP)
}

// appendIndex appends a number from 0 to 65535 in its shortest form.
func appendIndex(b []byte, n int) []byte {
	switch {
	case n < 1<<7:
		return append(b, byte(n))
	case n < 1<<8:
		return append(b, 0xcc, byte(n))
	}
	return append(b, 0xcd, byte(n>>8), byte(n))
}
