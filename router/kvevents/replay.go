package kvevents

import (
	"context"
	"encoding/binary"
	"hash/maphash"
	"math"
	"time"

	"pdrouter/internal/zmtp"
	"pdrouter/router/kvevents/stream"
)

const (
	replayIdle = 5 * time.Second // for the next batch; an engine looks at requests between its own batches
	replayMost = time.Minute     // for a whole replay
)

// lastOfReplay is the number of the message after the last batch.
const lastOfReplay = math.MaxUint64

// replay asks for old batches until the stream needs no more of them. Of all engines a few are asked at a time.
func (w *follower) replay(ctx context.Context) {
	select {
	case w.feed.replays <- struct{}{}:
	case <-ctx.Done():
		return
	}
	defer func() { <-w.feed.replays }()
	for again := true; again && ctx.Err() == nil; {
		var err error
		if again, err = w.replayOnce(ctx); err != nil && ctx.Err() == nil {
			w.warn("kv events replay failed", err)
			w.step(stream.Event{Kind: stream.ReplayFailed}, nil)
		}
	}
}

// replayOnce asks for old batches once. again says that they must be asked for again.
func (w *follower) replayOnce(ctx context.Context) (again bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, replayMost)
	defer cancel()
	idle := time.AfterFunc(replayIdle, cancel)
	defer idle.Stop()
	c, err := zmtp.Dial(ctx, w.at.Replayer(), "DEALER")
	if err != nil {
		return false, err
	}
	defer c.Close()
	if err := c.Send(nil, binary.BigEndian.AppendUint64(nil, w.stream.From())); err != nil {
		return false, err
	}
	for {
		frames, err := c.Receive(maxMessage)
		if err != nil {
			return false, err
		}
		idle.Reset(replayIdle)
		seq, payload, err := numbered(frames)
		if err != nil {
			return false, err
		}
		if seq == lastOfReplay {
			return w.step(stream.Event{Kind: stream.ReplayEnded}, nil), nil
		}
		if w.step(stream.Event{Kind: stream.Replayed, Seq: seq, Sum: maphash.Bytes(w.seed, payload)}, payload) {
			return true, nil
		}
	}
}
