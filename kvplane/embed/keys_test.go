package embed

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"pdrouter/internal/pdkvtest"
	"pdrouter/kvplane"
	"pdrouter/metadata"
)

// TestRecordKeysRotateUnderAScheduler: a scheduler goes by the record keys in the folder now. One that is taken out opens no ticket
// once the folder was read again.
func TestRecordKeysRotateUnderAScheduler(t *testing.T) {
	older, newer := pdkvtest.NewGateway(t), pdkvtest.NewGateway(t)
	folder := t.TempDir()
	trust := func(g *pdkvtest.Gateway) {
		b, err := os.ReadFile(g.Keys)
		if err == nil {
			err = os.WriteFile(filepath.Join(folder, filepath.Base(g.Keys)), b, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	trust(older)
	synctest.Test(t, func(t *testing.T) {
		s := scheduler(t, fmt.Sprintf(`, generation: 7, gateway: {record_keys: [%q]}`, folder))
		defer s.Close()
		own, peer := metadata.Incarnation{Engine: "e", Generation: 7}, metadata.Incarnation{Engine: "p", Generation: 1}
		want := func(when string, g *pdkvtest.Gateway, want Fault) {
			t.Helper()
			id := kvplane.NewTransferID()
			if err := s.Admit(metadata.Decode, id, peer, g.Ticket(t, id, peer, own)); FaultOf(err) != want {
				t.Errorf("%s: %v, fault %d; want fault %d", when, err, FaultOf(err), want)
			}
		}
		want("one key", older, 0)
		want("a key that is not trusted", newer, Ticket)
		trust(newer)
		time.Sleep(reloadEvery + time.Millisecond)
		want("overlap, the older key", older, 0)
		want("overlap, the newer key", newer, 0)
		if err := os.Remove(filepath.Join(folder, filepath.Base(older.Keys))); err != nil {
			t.Fatal(err)
		}
		time.Sleep(reloadEvery + time.Millisecond)
		want("the older key is withdrawn", older, Ticket)
		want("the newer key alone", newer, 0)
	})
}

// TestSchedulerWithoutRecordKeys: nothing can be checked, so legs are taken without a ticket.
func TestSchedulerWithoutRecordKeys(t *testing.T) {
	s := scheduler(t, `, generation: 7`)
	if err := s.Admit(metadata.Decode, kvplane.NewTransferID(), metadata.Incarnation{Engine: "p", Generation: 1}, ""); err != nil {
		t.Error(err)
	}
}
