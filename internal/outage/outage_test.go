package outage

import (
	"errors"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// TestOutage: what fails is logged when it begins, once a minute, and when it is over, with how long it has lasted.
func TestOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var text strings.Builder
		log := slog.New(slog.NewTextHandler(&text, &slog.HandlerOptions{ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
			if a.Key == slog.TimeKey || a.Key == slog.LevelKey {
				return slog.Attr{}
			}
			return a
		}}))
		var o Outage
		o.Over(log, "works")
		for range 130 {
			o.Failed(log, "fails", errors.New("refused"), "what", "x")
			time.Sleep(time.Second)
		}
		o.Over(log, "works", "what", "x")
		o.Over(log, "works")
		want := "msg=fails what=x err=refused\nmsg=fails what=x err=refused failures=61 for_seconds=60\nmsg=fails what=x err=refused failures=121 for_seconds=120\nmsg=works what=x failures=130 after_seconds=130\n"
		if text.String() != want {
			t.Errorf("logged\n%s\nwant\n%s", text.String(), want)
		}
	})
}
