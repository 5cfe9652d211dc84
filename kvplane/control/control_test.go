package control

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"pdrouter/kvplane/transfer"
)

func allow(r *http.Request) error {
	if r.Header.Get("Authorization") != "Bearer secret" {
		return errors.New("no")
	}
	return nil
}

func secret() (string, error) { return "secret", nil }

func TestWatch(t *testing.T) {
	events := NewBroadcaster()
	server := httptest.NewServer(Handler(events, func(transfer.ID, string) {}, allow, slog.New(slog.DiscardHandler)))
	defer server.Close()
	ctx, cancel := context.WithCancel(t.Context())
	got := make(chan Event, 100)
	ended := make(chan error, 1)
	go func() {
		ended <- Watch(ctx, server.Client(), server.URL+"/", secret, func(e Event) { got <- e })
	}()
	next := func(want string) {
		t.Helper()
		for e := range got {
			if e.Event == want {
				return
			}
			if e.Event != Ready && e.Event != Gap { // published before the break
				t.Fatalf("event is %+v; want %s", e, want)
			}
		}
	}
	next("open")
	want := Event{Transfer: transfer.NewID().String(), Engine: "d", Generation: 7, Event: Ready, K: 2, N: 2}
	// Published until one is seen: the subscription is made soon after the stream is open.
	see := func() Event {
		for {
			events.Publish(want)
			select {
			case e := <-got:
				return e
			case <-time.After(time.Millisecond):
			}
		}
	}
	if diff := cmp.Diff(see(), want); diff != "" {
		t.Errorf("event differs (-got +want):\n%s", diff)
	}
	// A broken stream is opened again, and each is told both.
	server.CloseClientConnections()
	next("closed")
	next("open")
	if diff := cmp.Diff(see(), want); diff != "" {
		t.Errorf("event after the break differs (-got +want):\n%s", diff)
	}
	cancel()
	for {
		select {
		case <-got:
			continue
		case err := <-ended:
			if !errors.Is(err, context.Canceled) {
				t.Errorf("Watch ended with %v", err)
			}
			return
		}
	}
}

// TestWatchTellsWhyOnce: a token that is refused must not fail in silence, nor fill a log.
func TestWatchTellsWhyOnce(t *testing.T) {
	asked := make(chan struct{}, 100)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusForbidden)
		asked <- struct{}{}
	}))
	defer server.Close()
	ctx, cancel := context.WithCancel(t.Context())
	var got []Event
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = Watch(ctx, server.Client(), server.URL, secret, func(e Event) { got = append(got, e) })
	}()
	for range 3 {
		<-asked
	}
	cancel()
	<-ended
	if len(got) != 1 || got[0].Event != Closed || !strings.Contains(got[0].Reason, "status 403") {
		t.Errorf("told %+v; want one closed event with status 403", got)
	}
}

func TestCancelTransfer(t *testing.T) {
	type call struct {
		ID  transfer.ID
		Why string
	}
	var got []call
	server := httptest.NewServer(Handler(NewBroadcaster(), func(id transfer.ID, why string) { got = append(got, call{id, why}) }, allow, slog.New(slog.DiscardHandler)))
	defer server.Close()
	id := transfer.NewID()
	if err := CancelTransfer(t.Context(), server.Client(), server.URL, secret, id, "client left"); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(got, []call{{id, "client left"}}); diff != "" {
		t.Errorf("calls differ (-got +want):\n%s", diff)
	}
	if err := CancelTransfer(t.Context(), server.Client(), server.URL, nil, id, ""); err == nil || !strings.Contains(err.Error(), "status 401") {
		t.Errorf("without a token: %v; want status 401", err)
	}
	for path, want := range map[string]int{
		"/kvplane/v1/transfers/nonsense/cancel":                              http.StatusBadRequest,
		"/kvplane/v1/transfers/" + strings.ToUpper(id.String()) + "x/cancel": http.StatusBadRequest,
		"/kvplane/v1/transfers/" + id.String() + "/other":                    http.StatusNotFound,
	} {
		req, err := http.NewRequest(http.MethodPost, server.URL+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Authorization", "Bearer secret")
		resp, err := server.Client().Do(req)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode != want {
			t.Errorf("%s answers %d; want %d", path, resp.StatusCode, want)
		}
	}
	if len(got) != 1 {
		t.Errorf("%d cancels were carried out; want 1", len(got))
	}
}

func TestSlowSubscriberMissesEvents(t *testing.T) {
	events := NewBroadcaster()
	feed, end := events.Subscribe(3)
	for i := range 10 {
		events.Publish(Event{Event: "ready", K: i + 1})
	}
	for range 3 {
		<-feed
	}
	events.Publish(Event{Event: "ready"})
	end()
	end()
	events.Publish(Event{Event: "sent"})
	var got []string
	for e := range feed {
		got = append(got, e.Event)
	}
	if diff := cmp.Diff(got, []string{"gap", "ready"}); diff != "" {
		t.Errorf("events differ (-got +want):\n%s", diff)
	}
}
