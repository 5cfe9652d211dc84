package configfile_test

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"pdrouter/auth"
	"pdrouter/internal/configfile"
	"pdrouter/internal/reload"
)

// A key that was deleted is gone after the next look at its file, although another line of it is damaged; and that
// something is wrong with the file can be seen.
func TestReloadsAreCounted(t *testing.T) {
	dir := t.TempDir()
	keys := filepath.Join(dir, "keys")
	leaked, err := auth.AppendAPIKey(keys, "leaked", nil, auth.Limits{})
	if err != nil {
		t.Fatal(err)
	}
	l, err := configfile.Load(writeConfig(t, dir, "  clients: {api_keys_file: keys}\n"))
	if err != nil {
		t.Fatal(err)
	}
	synctest.Test(t, func(t *testing.T) {
		var log strings.Builder
		files := reload.Credentials{Log: slog.New(slog.NewTextHandler(&log, nil))}
		clients, err := l.Auth.NewClients(&files)
		if err != nil {
			t.Fatal(err)
		}
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() { ended <- files.Run()(ctx) }()
		time.Sleep(reload.ReloadEvery + time.Second)
		if s := files.Stats(); s.Failures != 0 || s.Age != time.Second {
			t.Errorf("got %+v; want no failure for 1s", s)
		}
		if err := os.WriteFile(keys, []byte("# leaked: withdrawn\nother:oops\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		time.Sleep(reload.ReloadEvery)
		if p, err := clients.Authenticate("Bearer " + leaked); err == nil {
			t.Errorf("a key that is in no file any more is %s's", p.Subject)
		}
		if s := files.Stats(); s.Failures != 1 || s.Age != reload.ReloadEvery+time.Second {
			t.Errorf("got %+v; want one failure, 11s since all was read", s)
		}
		if err := os.WriteFile(keys, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		time.Sleep(reload.ReloadEvery)
		if s := files.Stats(); s.Failures != 1 || s.Age != time.Second {
			t.Errorf("got %+v; want all to be read", s)
		}
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		if !strings.Contains(log.String(), "keys:2:") || strings.Contains(log.String(), "oops") {
			t.Errorf("want the line's number and nothing of it in %s", log.String())
		}
	})
}
