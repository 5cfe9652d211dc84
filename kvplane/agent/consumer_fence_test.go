package agent

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"pdrouter/kvplane"
	"pdrouter/kvplane/internal/core"
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

func (f *fakeFencer) Forget(agent string) { f.did = append(f.did, "forget "+agent) }

// TestAdmissionBeginsWithAFence: what a fenced peer has posted over a connection that came after the fence may still be
// on its way when it is admitted. It must not land then.
func TestAdmissionBeginsWithAFence(t *testing.T) {
	for _, err := range []error{nil, errors.New("closed")} {
		f := &fakeFencer{fakeTransport: newFakeNet().transport(), err: err}
		cfg := Config{Transport: f, Log: slog.New(slog.DiscardHandler), Times: kvplane.Times{}.WithDefaults()}
		w := newOwner(context.Background(), cfg, metadata.Record{Agent: "d"}, host{now: func() time.Duration { return 1 }})
		w.peers[1] = &peer{id: 1, record: metadata.Record{Agent: "p"}}
		w.execute(&core.Effect{Do: core.DoAdmit, Peer: 1})
		want := []string{"fence p", "admit p"}
		if err != nil {
			want = want[:1]
		}
		if diff := cmp.Diff(f.did, want); diff != "" {
			t.Errorf("with %v (-got +want):\n%s", err, diff)
		}
	}
}

// TestSupersededRunsAreForgotten: the transport fences the ranks of a run that is superseded, and keeps nothing of them, whether
// or not their processes are proven dead.
func TestSupersededRunsAreForgotten(t *testing.T) {
	for _, proof := range []bool{false, true} {
		f := &fakeFencer{fakeTransport: newFakeNet().transport()}
		cfg := Config{Transport: f, Log: slog.New(slog.DiscardHandler), Times: kvplane.Times{}.WithDefaults()}
		w := newOwner(context.Background(), cfg, metadata.Record{Agent: "d"}, host{now: func() time.Duration { return 1 }})
		r := metadata.Record{Incarnation: metadata.Incarnation{Engine: "p", Generation: 1}, Agent: "p"}
		e := &engine{records: []metadata.Record{r}}
		e.peers = []*peer{w.addPeer(r)}
		w.engines[r.Incarnation] = e
		w.gone(r.Incarnation, proof)
		if diff := cmp.Diff(f.did, []string{"fence p", "forget p"}); diff != "" {
			t.Errorf("proof %v (-got +want):\n%s", proof, diff)
		}
	}
}
