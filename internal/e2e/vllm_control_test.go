//go:build e2e

package e2e

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"pdrouter/kvplane/nixl"
	"pdrouter/kvplane/reclaim"
	"pdrouter/metadata"
	sidechannel "pdrouter/metadata/vllm"
)

// control shows that the answers would tell if blocks were given back too early: the message by which the gateway reclaims
// is sent here, past the gateway, for requests that still wait for prefill's write, and what decode then says is wrong.
func control(t *testing.T, prefill, decode engine) {
	t.Helper()
	const tries = 4
	agent := newAgent(t)
	from, to := rankOf(t, prefill), rankOf(t, decode)
	wrong := 0
	for i := range tries {
		id := fmt.Sprintf("told-early-%d", i)
		prompt := fmt.Sprintf("%d is told too early, %s", i, strings.Repeat(strconv.Itoa((i+1)*104729)+" ", 60))
		status, want := complete(t.Context(), prefill.url, prompt, 12, false)
		if status != http.StatusOK {
			t.Fatalf("status %d, %q", status, want)
		}
		_ = syscall.Kill(-prefill.cmd.Process.Pid, syscall.SIGSTOP)
		answer := make(chan string, 1)
		go func() { answer <- asDecode(decode, id, prompt, from, prefill.side) }()
		until(t, slow, "decode waits for prefill", func() bool {
			return must(t, scrape(t, decode.url), "vllm:num_requests_waiting") > 0
		})
		if err := agent.Notify(t.Context(), []metadata.Record{to}, "cmpl-"+id+"-0:1", 1); err != nil {
			t.Fatal(err)
		}
		got := <-answer
		_ = syscall.Kill(-prefill.cmd.Process.Pid, syscall.SIGCONT)
		status, later := complete(t.Context(), decode.url, prompt, 12, false) // from the prefix that is taken for good
		if status != http.StatusOK {
			t.Fatalf("status %d, %q", status, later)
		}
		t.Logf("%q, then %q; want %q", got, later, want)
		if later != want {
			wrong++
		}
	}
	t.Logf("%d of %d later answers on the prompt of a request that was told too early are wrong", wrong, tries)
	if wrong == 0 {
		t.Error("no answer shows that its blocks were given back too early: that all are right proves nothing")
	}
}

// newAgent is an agent as the gateway's, until the test ends.
func newAgent(t *testing.T) *reclaim.Agent {
	t.Helper()
	lib, err := nixl.Open("")
	if err != nil {
		t.Fatal(err)
	}
	agent := reclaim.New(lib, reclaim.Config{})
	ended := make(chan error, 1)
	go func() { ended <- agent.Run(t.Context()) }()
	t.Cleanup(func() {
		if err := <-ended; err != nil {
			t.Error(err)
		}
		if err := lib.Close(); err != nil {
			t.Error(err)
		}
	})
	return agent
}

// rankOf is what an engine's one rank says of itself.
func rankOf(t *testing.T, e engine) metadata.Record {
	t.Helper()
	host, port, _ := net.SplitHostPort(e.side)
	n, _ := strconv.Atoi(port)
	at, err := sidechannel.Unknown(host, n)
	if err != nil {
		t.Fatal(err)
	}
	rec, err := at.First(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	rec.Engine, rec.Transport = e.name, "nixl"
	return rec
}

// asDecode asks decode for the decode leg alone, and returns the text of the answer.
func asDecode(decode engine, id, prompt string, prefill metadata.Record, side string) string {
	host, port, _ := net.SplitHostPort(side)
	n, _ := strconv.Atoi(port)
	body, _ := json.Marshal(map[string]any{"model": "tiny", "prompt": prompt, "max_tokens": 12, "temperature": 0,
		"kv_transfer_params": map[string]any{
			"do_remote_prefill": true, "do_remote_decode": false, "remote_engine_id": prefill.EngineID, "remote_host": host, "remote_port": n,
			"tp_size": 1, "pp_size": 1, "dcp_size": 1, "remote_request_id": "cmpl-" + id + "-0", "transfer_id": id,
		}})
	q, err := http.NewRequest(http.MethodPost, decode.url+"/v1/completions", bytes.NewReader(body))
	if err != nil {
		return err.Error()
	}
	q.Header.Set("Content-Type", "application/json")
	q.Header.Set("X-Request-Id", id)
	a, err := (&http.Client{Timeout: time.Minute}).Do(q)
	if err != nil {
		return err.Error()
	}
	defer a.Body.Close()
	said, _ := io.ReadAll(a.Body)
	var c completion
	if json.Unmarshal(said, &c) != nil || len(c.Choices) != 1 {
		return string(said)
	}
	return c.Choices[0].Text
}
