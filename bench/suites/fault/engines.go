package fault

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"pdrouter/bench/fake"
	"pdrouter/bench/harness"
)

// faultKind is how a prefill engine fails.
type faultKind int32

const (
	faultNone    faultKind = iota
	faultRefused           // its port is closed
	faultReset             // it takes the request and resets the connection
	fault500               // it answers 500
)

func (k faultKind) String() string { return [...]string{"none", "refused", "reset", "500"}[k] }

// faultStage is engines of this process for connector vllm-nixl-push: two for prefill, of which the first fails when it is told to,
// and one for decode, which hangs as long as nobody has written the blocks that it waits for.
type faultStage struct {
	bad, good, decode *faultEngine
	open              atomic.Int64 // requests that engines have not ended

	mu      sync.Mutex
	written map[string]chan struct{} // by transfer: closed when prefill has written
	held    map[string]bool          // transfers whose blocks decode has and may not free
}

// faultEngine is one of them.
type faultEngine struct {
	stage   *faultStage
	name    string
	prefill bool
	address string
	fault   atomic.Int32
	served  atomic.Int64 // legs that it was asked for, whatever became of them
	server  *http.Server
	ended   chan error
}

func newFaultStage() (*faultStage, error) {
	s := &faultStage{written: map[string]chan struct{}{}, held: map[string]bool{}}
	for _, e := range []struct {
		at      **faultEngine
		name    string
		prefill bool
	}{{&s.bad, "bad", true}, {&s.good, "good", true}, {&s.decode, "decode", false}} {
		*e.at = &faultEngine{stage: s, name: e.name, prefill: e.prefill, address: "127.0.0.1:0"}
		if err := (*e.at).listen(); err != nil {
			s.close()
			return nil, err
		}
	}
	return s, nil
}

func (s *faultStage) close() {
	for _, e := range []*faultEngine{s.bad, s.good, s.decode} {
		if e != nil {
			e.shut()
		}
	}
}

// listen opens the engine's port, the same as before.
func (e *faultEngine) listen() error {
	ln, err := net.Listen("tcp", e.address)
	if err != nil {
		return fmt.Errorf("bench: %w", err)
	}
	e.address, e.ended = ln.Addr().String(), make(chan error, 1)
	e.server = &http.Server{Handler: e, ReadHeaderTimeout: time.Minute}
	server, ended := e.server, e.ended
	go func() { ended <- server.Serve(ln) }()
	return nil
}

// shut closes the port and every connection.
func (e *faultEngine) shut() {
	if e.server != nil {
		_ = e.server.Close()
		<-e.ended
		e.server = nil
	}
}

// become has the engine fail so from now on, or not any more.
func (e *faultEngine) become(k faultKind) error {
	was := faultKind(e.fault.Swap(int32(k)))
	switch {
	case k == faultRefused:
		e.shut()
	case was == faultRefused:
		return e.listen()
	}
	return nil
}

// pushParams are what a leg's body says of the hand-off.
type pushParams struct {
	Stream bool `json:"stream"`
	KV     struct {
		Transfer string `json:"transfer_id"`
	} `json:"kv_transfer_params"`
}

func (e *faultEngine) ServeHTTP(w http.ResponseWriter, q *http.Request) {
	if !strings.HasPrefix(q.URL.Path, "/v1/") || q.Method != http.MethodPost {
		if q.URL.Path != "/health" {
			w.WriteHeader(http.StatusNotFound)
		}
		return
	}
	e.stage.open.Add(1)
	defer e.stage.open.Add(-1)
	var p pushParams
	body, err := io.ReadAll(q.Body)
	if err == nil {
		err = json.Unmarshal(body, &p)
	}
	if err != nil {
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	e.served.Add(1)
	if e.prefill {
		e.write(w, p)
	} else {
		e.generate(w, q, p)
	}
}

// write is a prefill leg.
func (e *faultEngine) write(w http.ResponseWriter, p pushParams) {
	switch faultKind(e.fault.Load()) {
	case faultReset:
		conn, _, err := http.NewResponseController(w).Hijack()
		if err == nil {
			_ = conn.(*net.TCPConn).SetLinger(0)
			_ = conn.Close()
		}
		return
	case fault500:
		w.WriteHeader(http.StatusInternalServerError)
		return
	}
	e.stage.wrote(p.KV.Transfer)
	w.Header().Set("Content-Type", "application/json")
	fmt.Fprintf(w, `{"id":"chatcmpl-bench","object":"chat.completion","created":1700000000,"model":%q,"choices":[{"index":0,"message":{"role":"assistant","content":"x"},"finish_reason":"length"}],"usage":{"prompt_tokens":200,"total_tokens":201,"completion_tokens":1},"kv_transfer_params":{"do_remote_prefill":true,"do_remote_decode":false,"remote_block_ids":[[1,2,3]],"remote_engine_id":%q,"remote_request_id":"chatcmpl-bench-0-01234567","remote_host":"127.0.0.1","remote_port":5600,"tp_size":1,"dcp_size":1,"pp_size":1,"remote_num_tokens":200,"transfer_mode":"push"}}`, fake.Model, e.name)
}

// generate is a decode leg: it registers its blocks and waits until they are written, or nobody wants the answer. A stream goes on
// for ever.
func (e *faultEngine) generate(w http.ResponseWriter, q *http.Request, p pushParams) {
	if p.KV.Transfer != "" { // else it is no part of a hand-off: the gateway asks engines so what they are
		select {
		case <-e.stage.register(p.KV.Transfer):
		case <-q.Context().Done():
			return
		}
	}
	if p.Stream {
		w.Header().Set("Content-Type", "text/event-stream; charset=utf-8")
		out := http.NewResponseController(w)
		for {
			fmt.Fprintf(w, "data: {\"id\":\"chatcmpl-bench\",\"object\":\"chat.completion.chunk\",\"created\":1700000000,\"model\":%q,\"choices\":[{\"index\":0,\"delta\":{\"content\":\" word\"},\"logprobs\":null,\"finish_reason\":null}]}\n\n", fake.Model)
			if out.Flush() != nil {
				return
			}
			if harness.Pause(q.Context(), 20*time.Millisecond) != nil {
				return
			}
		}
	}
	w.Header().Set("Content-Type", "application/json")
	fmt.Fprintf(w, `{"id":"chatcmpl-bench","object":"chat.completion","created":1700000000,"model":%q,"choices":[{"index":0,"message":{"role":"assistant","content":" word"},"finish_reason":"length"}],"usage":{"prompt_tokens":200,"total_tokens":201,"completion_tokens":1}}`, fake.Model)
}

// ofLocked returns what tells that a transfer was written.
func (s *faultStage) ofLocked(transfer string) chan struct{} {
	c := s.written[transfer]
	if c == nil {
		c = make(chan struct{})
		s.written[transfer] = c
	}
	return c
}

// register has decode hold blocks until they are written, whatever becomes of its request.
func (s *faultStage) register(transfer string) <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.ofLocked(transfer)
	select {
	case <-c:
	default:
		s.held[transfer] = true
	}
	return c
}

func (s *faultStage) wrote(transfer string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.ofLocked(transfer)
	select {
	case <-c:
	default:
		close(c)
	}
	delete(s.held, transfer)
}

// left is how many transfers' blocks decode holds.
func (s *faultStage) left() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.held)
}

// settle waits until no more requests are open and no more transfers held than those that stay anyway, for at most as long as said,
// and returns how many are.
func (s *faultStage) settle(ctx context.Context, openBefore, heldBefore int, most time.Duration) (open, held int, err error) {
	for end := time.Now().Add(most); ; time.Sleep(5 * time.Millisecond) {
		open, held = int(s.open.Load()), s.left()
		if open <= openBefore && held <= heldBefore || time.Now().After(end) || ctx.Err() != nil {
			return open, held, ctx.Err()
		}
	}
}
