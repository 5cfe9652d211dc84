package stock

import (
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
)

// TestRelay hands on what both sides say, and tells of answers to POSTs alone.
func TestRelay(t *testing.T) {
	engine := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		said, _ := io.ReadAll(r.Body)
		_, _ = io.WriteString(w, "to "+r.Method+": "+string(said))
	}))
	defer engine.Close()
	r, err := openRelay(strings.TrimPrefix(engine.URL, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer r.close()
	client := &http.Client{Transport: &http.Transport{}} // connections of its own, which are kept
	defer client.CloseIdleConnections()
	ask := func(method, body string) {
		t.Helper()
		q, err := http.NewRequestWithContext(t.Context(), method, "http://"+r.address, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		answer, err := client.Do(q)
		if err != nil {
			t.Fatal(err)
		}
		defer answer.Body.Close()
		if said, err := io.ReadAll(answer.Body); err != nil || string(said) != "to "+method+": "+body {
			t.Errorf("got %q, %v", said, err)
		}
	}
	before := time.Now()
	ask(http.MethodPost, strings.Repeat("x", 300_000))
	if at, err := r.Passed(t.Context()); err != nil || at.Before(before) || at.After(time.Now()) {
		t.Errorf("an answer has passed at %v, %v", at, err)
	}
	r.Expect()
	ask(http.MethodGet, "")
	if !r.last.IsZero() {
		t.Error("an answer to GET was told of")
	}
	ask(http.MethodPost, "again")
	if _, err := r.Passed(t.Context()); err != nil {
		t.Error(err)
	}
}

func TestRelayWithoutEngine(t *testing.T) {
	gone := httptest.NewServer(http.NotFoundHandler())
	gone.Close()
	r, err := openRelay(strings.TrimPrefix(gone.URL, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer r.close()
	if _, err := http.Get("http://" + r.address); err == nil || errors.Is(err, io.ErrNoProgress) {
		t.Errorf("got %v; want a connection that ends", err)
	}
}

// TestMedianInterval against the order statistics that tables of the sign test give for 95 %.
func TestMedianInterval(t *testing.T) {
	for n, k := range map[int]int{6: 1, 10: 2, 15: 4, 20: 6, 30: 10, 50: 18, 100: 40} { // the k-th smallest and largest
		figures := make([]float64, n)
		for i := range figures {
			figures[i] = float64(n - i)
		}
		if low, high := MedianInterval(figures); low != float64(k) || high != float64(n+1-k) {
			t.Errorf("of %d: %v to %v; want %d to %d", n, low, high, k, n+1-k)
		}
	}
}
