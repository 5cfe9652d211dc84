package kvevents

import (
	"context"
	"encoding/binary"
	"fmt"
	"hash/maphash"
	"math/rand/v2"
	"net"
	"sync"
	"time"

	"pdrouter/internal/background"
	"pdrouter/internal/zmtp"
	"pdrouter/policies/blocks"
	"pdrouter/router/config"
	"pdrouter/router/fleet"
	"pdrouter/router/kvevents/batch"
	"pdrouter/router/kvevents/stream"
)

const (
	retryFirst   = 100 * time.Millisecond
	retryLongest = 5 * time.Second
	settled      = 10 * time.Second // a connection that lives so long has not failed
	opening      = 5 * time.Second  // for a connection and its handshake
)

// maxMessage bounds one batch, in bytes: the tokens and hashes of some millions of tokens.
const maxMessage = 32 << 20

// keepAlive finds peers that have gone without a word.
var keepAlive = net.KeepAliveConfig{Enable: true, Idle: 15 * time.Second, Interval: 5 * time.Second, Count: 3}

// follower keeps the index up to date with one engine. Its goroutine owns all but what mu guards.
type follower struct {
	feed   *Feed
	engine *fleet.Engine
	at     config.KVEvents
	stop   context.CancelFunc
	done   chan struct{} // closed when it has ended

	holder  blocks.Holder
	stream  stream.State
	decoder batch.Decoder
	seed    maphash.Seed
	actions []stream.Action
	shown   bool
	said    map[string]bool // what has been logged since a connection has lived for long

	mu    sync.Mutex
	stats Stats
	last  time.Time // when a batch came
}

// run follows the engine until ctx ends. A connection that cannot be made or breaks is made again after 100 ms, and ever more slowly up to
// every 5 s.
func (w *follower) run(ctx context.Context) {
	if w.shown { // before it has panicked
		w.show(false)
	}
	w.feed.index.Clear(w.holder)
	w.stream, w.said, w.shown = stream.State{Replays: w.at.Replayer() != ""}, map[string]bool{}, false
	address, listens := w.at.Publisher()
	var ln *net.TCPListener
	defer func() {
		if ln != nil {
			_ = ln.Close()
		}
	}()
	for pause := retryFirst; ; pause = min(2*pause, retryLongest) {
		began, err := time.Time{}, error(nil)
		if listens && ln == nil {
			ln, err = listen(ctx, address)
		}
		if err == nil {
			began, err = w.connection(ctx, address, ln)
		}
		if ctx.Err() != nil {
			return
		}
		w.step(stream.Event{Kind: stream.Disconnected}, nil) // of a connection that could not be made, too
		if !began.IsZero() && time.Since(began) >= settled {
			pause = retryFirst
			clear(w.said)
		}
		w.warn("kv events lost", err)
		background.Sleep(ctx, pause/2+rand.N(pause/2))
	}
}

// warn logs what has failed, once until a connection has lived for long: what fails at each connection would fill the log.
func (w *follower) warn(what string, err error) {
	if !w.said[what] {
		w.said[what] = true
		w.feed.log.Warn(what, "engine", w.engine.Name, "err", err)
	}
}

// listen opens the socket that an engine connects to. Waiting there ends with ctx.
func listen(ctx context.Context, address string) (*net.TCPListener, error) {
	lc := net.ListenConfig{KeepAliveConfig: keepAlive}
	ln, err := lc.Listen(ctx, "tcp", address)
	if err != nil {
		return nil, err
	}
	tcp := ln.(*net.TCPListener)
	context.AfterFunc(ctx, func() { _ = tcp.SetDeadline(time.Unix(1, 0)) })
	return tcp, nil
}

// connection makes one connection and follows it until it breaks. began is when it was made, zero if it was not.
func (w *follower) connection(ctx context.Context, address string, ln *net.TCPListener) (began time.Time, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	c, err := w.open(ctx, cancel, address, ln)
	if err != nil {
		return time.Time{}, err
	}
	defer c.Close()
	if err := c.Send([]byte{1}); err != nil { // every topic
		return time.Time{}, err
	}
	began = time.Now()
	w.connected(true)
	defer w.connected(false)
	if !w.said["kv events lost"] {
		w.feed.log.Info("kv events connected", "engine", w.engine.Name)
	} else { // it may break at once, again and again
		later := time.AfterFunc(settled, func() { w.feed.log.Info("kv events connected", "engine", w.engine.Name) })
		defer later.Stop()
	}
	if w.step(stream.Event{Kind: stream.Connected}, nil) {
		w.replay(ctx)
	}
	for {
		frames, err := c.Receive(maxMessage)
		if err != nil {
			return began, err
		}
		seq, payload, err := numbered(frames)
		if err != nil {
			return began, err
		}
		w.note(func(s *Stats) { w.last = time.Now() })
		e := stream.Event{Kind: stream.Published, Seq: seq, Sum: maphash.Bytes(w.seed, payload)}
		for w.step(e, payload) {
			if w.replay(ctx); ctx.Err() != nil {
				return began, context.Cause(ctx)
			}
		}
	}
}

// open dials, or waits for the engine to, and shakes hands.
func (w *follower) open(ctx context.Context, cancel context.CancelFunc, address string, ln *net.TCPListener) (*zmtp.Conn, error) {
	var nc net.Conn
	var err error
	if ln != nil {
		_ = ln.SetDeadline(time.Now().Add(stream.Kept))
		if ctx.Err() != nil { // what ends Accept with ctx may have set its deadline before
			return nil, ctx.Err()
		}
		nc, err = ln.Accept()
	} else {
		d := net.Dialer{Timeout: opening, KeepAliveConfig: keepAlive}
		nc, err = d.DialContext(ctx, "tcp", address)
	}
	if err != nil {
		return nil, err
	}
	late := time.AfterFunc(opening, cancel)
	defer late.Stop()
	return zmtp.Open(ctx, nc, "SUB")
}

// numbered reads a message: the last two frames are the batch's number and its bytes. Some releases put a topic before them.
func numbered(frames [][]byte) (seq uint64, payload []byte, err error) {
	if len(frames) < 2 || len(frames[len(frames)-2]) != 8 {
		return 0, nil, fmt.Errorf("message of %d frames without a number; want a batch of KV events", len(frames))
	}
	return binary.BigEndian.Uint64(frames[len(frames)-2]), frames[len(frames)-1], nil
}

// step applies an event of the stream, with the bytes of its batch. It reports whether a replay is to be asked for; then a published batch is
// not done with.
func (w *follower) step(e stream.Event, payload []byte) (replay bool) {
	e.At = time.Now()
	w.actions = w.stream.Step(e, w.actions[:0])
	for _, a := range w.actions {
		switch a {
		case stream.Enter:
			w.enter(payload)
		case stream.Forget:
			w.feed.index.Clear(w.holder)
		case stream.Replay:
			replay = true
		}
	}
	if live := w.stream.Live(); live != w.shown {
		w.show(live)
	}
	w.note(func(s *Stats) {
		s.Live, s.Gaps, s.Replays, s.Resets = w.stream.Live(), w.stream.Gaps, w.stream.Asked, w.stream.Resets
	})
	return replay
}

// show has others know what the index has of the engine, or not.
func (w *follower) show(live bool) {
	w.shown = live
	w.feed.index.Show(w.holder, live)
	if live {
		w.engine.SetHolder(&w.holder)
	} else {
		w.engine.SetHolder(nil)
	}
}

func (w *follower) connected(is bool) { w.note(func(s *Stats) { s.Connected = is }) }

// note changes what Stats tells.
func (w *follower) note(change func(*Stats)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	change(&w.stats)
}

// read returns what Stats tells of the stream.
func (w *follower) read() Stats {
	w.mu.Lock()
	defer w.mu.Unlock()
	s := w.stats
	s.Age = -1
	if !w.last.IsZero() {
		s.Age = time.Since(w.last).Seconds()
	}
	return s
}
