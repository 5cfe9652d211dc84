package kubetest

import (
	"net/http"
	"net/http/httptest"
	"net/url"
	"os/exec"
	"sync/atomic"
	"testing"
)

// TestPreStopHook runs the hook of the example's engines: it ends when the gateway says that the engine may stop, or when its time is over.
func TestPreStopHook(t *testing.T) {
	python, err := exec.LookPath("python3")
	if err != nil {
		t.Skip("python3 is not installed")
	}
	var asked atomic.Int64
	status := func(int64) int { return http.StatusOK }
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		n := asked.Add(1)
		if r.URL.String() != "/may-stop?engine=prefill-0" {
			t.Errorf("asked for %s", r.URL)
		}
		w.WriteHeader(status(n))
	}))
	defer s.Close()
	u, err := url.Parse(s.URL)
	if err != nil {
		t.Fatal(err)
	}
	for _, row := range []struct {
		name, host, port, seconds string
		status                    func(n int64) int
		asked                     int64 // at least
		complains                 bool
	}{
		{"at the third question", "127.0.0.1", u.Port(), "60", func(n int64) int { return map[bool]int{true: 200, false: 503}[n >= 3] }, 3, false},
		{"never", "127.0.0.1", u.Port(), "1", func(int64) int { return 503 }, 1, true},
		{"a gateway without this question", "127.0.0.1", u.Port(), "60", func(int64) int { return 404 }, 1, false},
		{"the gateway is gone", "127.0.0.1", "1", "60", nil, 0, false},
		{"there is no gateway", "no-such-host.invalid", u.Port(), "60", nil, 0, false},
	} {
		asked.Store(0)
		status = row.status
		out, err := exec.Command(python, chartFolder+"/files/pre_stop.py", row.host, row.port, "prefill-0", row.seconds).CombinedOutput()
		if err != nil || asked.Load() < row.asked || (len(out) > 0) != row.complains {
			t.Errorf("%s: %v, asked %d times, printed %q", row.name, err, asked.Load(), out)
		}
	}
}
