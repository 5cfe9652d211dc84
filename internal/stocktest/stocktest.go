// Package stocktest has a stock vLLM engine for tests: as much of HTTP as a hand-off of two legs needs, and a side channel. It computes nothing.
package stocktest

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync"
	"testing"

	"github.com/go-zeromq/zmq4"
	"github.com/vmihailenco/msgpack/v5"
)

// Engine is a stock prefill or decode engine: as much of HTTP as a hand-off of two legs needs, and a side channel at a
// ROUTER socket that remembers every rank it was asked for.
type Engine struct {
	*httptest.Server
	Side   string // host:port of the side channel
	Compat string // the compatibility digest; to be set before somebody asks
	tp     int

	mu     sync.Mutex
	id     string
	asked  []string // "pp/tp"
	strays int      // questions about ranks that do not exist
	legs   int      // prefill legs
	busy   <-chan struct{}
	unwell bool // says that it is not healthy
	stop   func()
}

// New starts an engine whose run has this id and that has tp ranks. It ends with the test.
func New(t *testing.T, id string, tp int) *Engine {
	t.Helper()
	f := &Engine{id: id, tp: tp, Compat: "digest"}
	f.Listen(t, "127.0.0.1:0")
	f.Server = httptest.NewServer(http.HandlerFunc(f.serve))
	t.Cleanup(func() { f.CloseClientConnections(); f.Close(); f.stop() })
	return f
}

// Listen opens the side channel.
func (f *Engine) Listen(t *testing.T, address string) {
	t.Helper()
	ctx, stop := context.WithCancel(context.Background())
	socket := zmq4.NewRouter(ctx, zmq4.WithLogger(log.New(io.Discard, "", 0)))
	if err := socket.Listen("tcp://" + address); err != nil {
		stop()
		t.Fatal(err)
	}
	f.Side = socket.Addr().String()
	var serving sync.WaitGroup
	serving.Go(func() {
		for {
			m, err := socket.Recv()
			if err != nil {
				return
			}
			if answer := f.answer(m.Frames[len(m.Frames)-1]); answer != nil {
				_ = socket.SendMulti(zmq4.NewMsgFrom(m.Frames[0], nil, answer, []byte{0}))
			}
		}
	})
	f.stop = sync.OnceFunc(func() {
		stop()
		_ = socket.Close()
		serving.Wait()
	})
}

func (f *Engine) answer(question []byte) []byte {
	var q [3]any
	err := msgpack.Unmarshal(question, &q)
	rank := fmt.Sprintf("%v/%v", q[1], q[2])
	f.mu.Lock()
	defer f.mu.Unlock()
	f.asked = append(f.asked, rank)
	var pp, tp int
	if n, _ := fmt.Sscanf(rank, "%d/%d", &pp, &tp); err != nil || n != 2 || pp != 0 || tp >= f.tp {
		f.strays++
		return nil
	}
	agent, _ := msgpack.Marshal(map[string]any{"engine_id": f.id, "agent_metadata": []byte("agent " + rank)})
	b, _ := msgpack.Marshal(map[string]any{"compatibility_hash": f.Compat, "agent_metadata_bytes": agent})
	return b
}

func (f *Engine) serve(w http.ResponseWriter, r *http.Request) {
	f.mu.Lock()
	unwell, busy := f.unwell, f.busy
	f.mu.Unlock()
	if r.URL.Path == "/health" {
		if unwell {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
		return
	}
	if busy != nil {
		<-busy
	}
	var b struct {
		KV map[string]any `json:"kv_transfer_params"`
	}
	_ = json.NewDecoder(r.Body).Decode(&b)
	f.mu.Lock()
	defer f.mu.Unlock()
	more := ""
	if b.KV["do_remote_decode"] == true {
		f.legs++
		host, port, _ := net.SplitHostPort(f.Side)
		more = fmt.Sprintf(`,"kv_transfer_params":{"do_remote_prefill":true,"remote_engine_id":%q,"remote_host":%q,"remote_port":%s,"tp_size":%d,"pp_size":1,"dcp_size":1,`+
			`"remote_block_ids":[[1]],"remote_request_id":"r","transfer_mode":"push"}`, f.id, host, port, f.tp)
	}
	w.Header().Set("Content-Type", "application/json")
	fmt.Fprintf(w, `{"id":"x","object":"text_completion","model":"tiny","choices":[{"index":0,"text":"tok","finish_reason":"stop"}],"usage":{"prompt_tokens":1,"completion_tokens":1}%s}`, more)
}

// Restart has the engine be another run.
func (f *Engine) Restart(id string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.id = id
}

// Hold has legs wait until the channel is closed.
func (f *Engine) Hold(until <-chan struct{}) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.busy = until
}

// SetHealthy has the engine say that it is healthy, or that it is not.
func (f *Engine) SetHealthy(well bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.unwell = !well
}

// StopSideChannel closes the side channel.
func (f *Engine) StopSideChannel() { f.stop() }

// Asked lists the ranks that the side channel was asked for, "pp/tp", and how many of them do not exist.
func (f *Engine) Asked() (ranks []string, strays int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.asked), f.strays
}

// PrefillLegs is how often the engine was asked to prefill for another one.
func (f *Engine) PrefillLegs() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.legs
}
