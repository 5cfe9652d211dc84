package kvplane

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"pdrouter/metadata"
)

// fakeFencer notes what it is asked to do.
type fakeFencer struct {
	*fakeTransport
	did []string
	err error
}

func (f *fakeFencer) Fence(agent string) error {
	f.did = append(f.did, "fence "+agent)
	return f.err
}

func (f *fakeFencer) Admit(agent string) { f.did = append(f.did, "admit "+agent) }

// TestAdmissionBeginsWithAFence: what a fenced peer has posted over a connection that came after the fence may still be
// on its way when it is admitted. It must not land then.
func TestAdmissionBeginsWithAFence(t *testing.T) {
	for _, err := range []error{nil, errors.New("closed")} {
		f := &fakeFencer{fakeTransport: newFakeNet().transport(), err: err}
		cfg := Config{Transport: f, Log: slog.New(slog.DiscardHandler), Times: Times{}.withDefaults()}
		w := newWriter(context.Background(), cfg, metadata.Record{Agent: "d"}, host{now: func() time.Duration { return 1 }})
		w.peers[1] = &peer{id: 1, record: metadata.Record{Agent: "p"}}
		w.do(&effect{do: doAdmit, peer: 1})
		want := []string{"fence p", "admit p"}
		if err != nil {
			want = want[:1]
		}
		if diff := cmp.Diff(f.did, want); diff != "" {
			t.Errorf("with %v (-got +want):\n%s", err, diff)
		}
	}
}
