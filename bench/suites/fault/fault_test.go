package fault

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"syscall"
	"testing"
	"time"
)

// leg asks an engine for a leg of a transfer.
func leg(ctx context.Context, e *faultEngine, transfer string) (int, error) {
	body := fmt.Sprintf(`{"model":"bench","kv_transfer_params":{"transfer_id":%q}}`, transfer)
	q, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+e.address+"/v1/chat/completions", bytes.NewReader([]byte(body)))
	if err != nil {
		return 0, err
	}
	q.Close = true // the next one is to meet what the engine is then
	a, err := http.DefaultClient.Do(q)
	if err != nil {
		return 0, err
	}
	defer a.Body.Close()
	_, err = io.Copy(io.Discard, a.Body)
	return a.StatusCode, err
}

// TestFaultEnginesHoldBlocks has a decode leg wait until prefill has written, through each fault, and hold its blocks when its
// client leaves.
func TestFaultEnginesHoldBlocks(t *testing.T) {
	s, err := newFaultStage()
	if err != nil {
		t.Fatal(err)
	}
	defer s.close()
	for kind, want := range map[faultKind]error{faultRefused: syscall.ECONNREFUSED, faultReset: syscall.ECONNRESET, fault500: nil} {
		transfer := kind.String()
		decoded := make(chan int, 1)
		go func() {
			status, _ := leg(t.Context(), s.decode, transfer)
			decoded <- status
		}()
		if err := s.bad.become(kind); err != nil {
			t.Fatal(err)
		}
		status, err := leg(t.Context(), s.bad, transfer)
		if ended := kind == faultReset && err != nil && strings.Contains(err.Error(), "EOF"); want != nil && !errors.Is(err, want) && !ended {
			t.Errorf("%v: got %d, %v", kind, status, err)
		}
		if want == nil && status != http.StatusInternalServerError {
			t.Errorf("%v: got %d, %v", kind, status, err)
		}
		if err := s.bad.become(faultNone); err != nil {
			t.Fatal(err)
		}
		select {
		case status := <-decoded:
			t.Fatalf("%v: decode answers %d though nobody has written", kind, status)
		default:
		}
		if status, err := leg(t.Context(), s.bad, transfer); status != http.StatusOK {
			t.Fatalf("%v: well again, prefill answers %d, %v", kind, status, err)
		}
		if status := <-decoded; status != http.StatusOK {
			t.Errorf("%v: decode answers %d", kind, status)
		}
	}
	if status, err := leg(t.Context(), s.decode, ""); status != http.StatusOK || err != nil || s.left() != 0 {
		t.Errorf("a request that is no part of a hand-off: %d, %v, and %d transfers are held", status, err, s.left())
	}
	ctx, leave := context.WithCancel(t.Context())
	left := make(chan error, 1)
	go func() {
		_, err := leg(ctx, s.decode, "left")
		left <- err
	}()
	for s.left() == 0 {
		select {
		case err := <-left:
			t.Fatal(err)
		case <-time.After(time.Millisecond):
		}
	}
	leave()
	<-left
	if _, held, err := s.settle(t.Context(), 0, 0, 0); held != 1 || err != nil {
		t.Errorf("%d transfers are held, %v; want the one whose client has left", held, err)
	}
	if _, held, err := s.settle(t.Context(), 0, 1, time.Hour); held != 1 || err != nil { // what is known to stay is not waited for
		t.Errorf("%d transfers are held, %v", held, err)
	}
	if status, err := leg(t.Context(), s.good, "left"); status != http.StatusOK {
		t.Fatal(status, err)
	}
	if open, held, err := s.settle(t.Context(), 0, 0, 10*time.Second); open+held != 0 || err != nil {
		t.Errorf("%d requests and %d transfers are left, %v", open, held, err)
	}
}
