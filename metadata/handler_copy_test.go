package metadata

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"pdrouter/internal/redistest"
)

// burnt returns the processor time that this process has used.
func burnt() time.Duration {
	var u syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &u) // of oneself it never fails
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// wide returns the record of one of eight ranks of an engine with 32 layers.
func wide(engine string, rank int) Record {
	r := record(engine, 7, 8, rank)
	r.Layout.Heads, r.Layout.Regions = 8, nil
	for layer := range 32 {
		r.Layout.Regions = append(r.Layout.Regions, region(layer))
	}
	r.Expires = r.Published.Add(5 * time.Minute)
	return r
}

// fleet puts engines of 8 ranks into a store, every second one a prefill engine.
func fleet(t testing.TB, s Store, engines int) {
	t.Helper()
	for i := range engines {
		for rank := range 8 {
			if err := s.Put(t.Context(), wide(fmt.Sprint([]string{"prefill-", "decode-"}[i%2], i), rank)); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// TestFault42AgentsReadWithoutTheStore: what the gateway knows is read at the gateway, whatever its store does.
func TestFault42AgentsReadWithoutTheStore(t *testing.T) {
	s := &fakeStore{Memory: NewMemory()}
	put(t, s.Memory, record("prefill-0", 7, 1, 0), nil)
	put(t, s.Memory, record("decode-0", 7, 1, 0), nil)
	g := newGateway(t, HandlerConfig{}, s)
	g.auth = fakeCallers{"agent": {Engine: "decode-0", Role: Decode}}
	eventually(t, "both are known", func() bool { return len(g.handler.copy.Engines()) == 2 })
	s.set(errors.New("the store is down"), false)
	for _, path := range []string{
		"/metadata/v1/engines", "/metadata/v1/engines/prefill-0", "/metadata/v1/engines/decode-0", "/metadata/v1/engines/prefill-0/ranks/0/0/0",
		"/get_kv_connector_metadata", "/get_kv_connector_metadata/0?engine=prefill-0",
	} {
		if got := send(t, "GET", g.url()+path, "agent", nil); got.status != 200 || !strings.Contains(string(got.body), "0") {
			t.Errorf("%s: got %d %s", path, got.status, got.body)
		}
	}
	// Of one that it does not know it cannot say that it is not there.
	wantError(t, "unknown", send(t, "GET", g.url()+"/metadata/v1/engines/prefill-1", "agent", nil), 503, "store_unavailable")
	s.set(nil, false)
	wantError(t, "unknown", send(t, "GET", g.url()+"/metadata/v1/engines/prefill-1", "agent", nil), 404, "not_found")
}

// A list of 1,000 engines of 8 ranks asks the store for nothing, and judges engines of one make once.
func TestListOfAThousandCostsNoExchange(t *testing.T) {
	s := &fakeStore{Memory: NewMemory()}
	fleet(t, s, 1000)
	local, err := NewCache(s, CacheConfig{}, nil, quiet())
	if err != nil {
		t.Fatal(err)
	}
	h, err := NewHandler(HandlerConfig{}, HandlerParts{Store: s, Copy: local, Authorizer: fakeCallers{"agent": {Engine: "decode-1", Role: Decode}}, Log: quiet()})
	if err != nil {
		t.Fatal(err)
	}
	running(t, local.Run)
	eventually(t, "all are known", func() bool { return len(local.Engines()) == 1000 })
	s.set(errors.New("asked"), false)
	list := func() *httptest.ResponseRecorder {
		r := httptest.NewRequest("GET", "/metadata/v1/engines", nil)
		r.Header.Set("Authorization", "Bearer agent")
		r.Header.Set("Accept", ContentType)
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		return w
	}
	for _, name := range []string{"first", "second"} {
		before := burnt()
		if w := list(); w.Code != 200 || strings.Count(w.Body.String(), "prefill-") != 500 || strings.Count(w.Body.String(), "decode-") != 1 {
			t.Fatalf("%s: got %d with %d bytes", name, w.Code, w.Body.Len())
		}
		t.Logf("the %s list of 1,000 engines: %v of processor time", name, burnt()-before)
	}
	if n := len(h.shapes.verdicts); n != 2 {
		t.Errorf("%d judgements; want one of prefill engines and one of decode engines", n)
	}
}

// TestFault41NamesAreNotTold: to an agent, an engine that it may not pair with and one that nobody has ever heard of are the
// same, on every route; the log tells them apart from nothing else.
func TestFault41NamesAreNotTold(t *testing.T) {
	s := NewMemory()
	couples := func(x, y string) bool {
		return strings.Contains("decode-0 prefill-0 prefill-later", x) && strings.Contains("decode-0 prefill-0 prefill-later", y)
	}
	local, err := NewCache(s, CacheConfig{}, nil, quiet())
	if err != nil {
		t.Fatal(err)
	}
	for _, store := range []Copy{nil, local} {
		h, err := NewHandler(HandlerConfig{}, HandlerParts{Store: s, Copy: store, Paired: couples, Log: quiet(), Authorizer: fakeCallers{
			"agent": {Engine: "decode-0", Role: Decode}, "early": {Engine: "decode-9", Role: Decode}}})
		if err != nil {
			t.Fatal(err)
		}
		srv := httptest.NewServer(h)
		t.Cleanup(srv.Close)
		put(t, s, record("decode-0", uint64(time.Now().UnixNano()), 1, 0), nil)
		put(t, s, record("prefill-secret", uint64(time.Now().UnixNano()), 1, 0), nil)
		put(t, s, record("prefill-half", uint64(time.Now().UnixNano()), 2, 0), nil)
		for _, path := range []string{"/metadata/v1/engines/%s", "/metadata/v1/engines/%s/ranks/0/0/0", "/get_kv_connector_metadata?engine=%s", "/get_kv_connector_metadata/0?engine=%s"} {
			for _, token := range []string{"agent", "early"} {
				var answers []string
				for _, engine := range []string{"prefill-secret", "prefill-half", "prefill-none", "decode-none"} {
					got := send(t, "GET", srv.URL+fmt.Sprintf(path, engine), token, nil)
					got.header.Del("Date")
					answers = append(answers, fmt.Sprint(got.status, got.header, string(got.body)))
					if got.status != http.StatusForbidden || answers[0] != answers[len(answers)-1] {
						t.Errorf("%s reads "+path+": got %s; want 403, as of the others: %s", token, engine, answers[len(answers)-1], answers[0])
					}
				}
			}
		}
		wantError(t, "one that may come yet", send(t, "GET", srv.URL+"/metadata/v1/engines/prefill-later", "agent", nil), 404, "not_found")
	}
}

// Whoever may read certain engines sees the pairs of these.
func TestPairsOfWhoReadsCertainEngines(t *testing.T) {
	h, err := NewHandler(HandlerConfig{}, HandlerParts{
		Store: NewMemory(), Log: quiet(), Authorizer: fakeCallers{"reader": {Reads: []string{"p0", "d0"}}, "agent": {Engine: "d1", Reads: []string{"p0", "d0"}}},
		Pairs: func() []PairState {
			return []PairState{{Prefill: "p0", Decode: "d0"}, {Prefill: "p0", Decode: "d1"}, {Prefill: "secret", Decode: "d0"}, {Prefill: "secret", Decode: "d2"}}
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	srv := httptest.NewServer(h)
	t.Cleanup(srv.Close)
	for token, want := range map[string]string{"reader": "p0-d0 ", "agent": "p0-d0 p0-d1 "} {
		var answer struct{ Pairs []PairState }
		if err := json.Unmarshal(send(t, "GET", srv.URL+"/metadata/v1/pairs", token, nil).body, &answer); err != nil {
			t.Fatal(err)
		}
		got := ""
		for _, p := range answer.Pairs {
			got += p.Prefill + "-" + p.Decode + " "
		}
		if got != want {
			t.Errorf("%s sees %q; want %q", token, got, want)
		}
	}
}

// One caller's streams leave room for others'.
func TestWatchesOfOneCaller(t *testing.T) {
	g := newGateway(t, HandlerConfig{Watch: WatchConfig{PerCaller: 2}}, NewMemory())
	g.auth = fakeCallers{"a": {Subject: "s", Engine: "a"}, "a again": {Subject: "other", Engine: "a"}, "rank": {Engine: "a", Ranks: []Rank{{}}}, "person": {Subject: "p"}}
	one := openWatch(t, g.url()+watchPath, "a")
	openWatch(t, g.url()+watchPath, "a again")
	wantError(t, "the third", send(t, "GET", g.url()+watchPath, "a", nil), 503, "caller_watches")
	openWatch(t, g.url()+watchPath, "rank")
	openWatch(t, g.url()+watchPath, "person")
	one.end()
	eventually(t, "the one that was left is noticed", func() bool { return g.watching() == 3 })
	openWatch(t, g.url()+watchPath, "a")
}

// A key in Redis of a type that nobody here wrote costs its engine, and no other.
func TestFault43WrongTypeCostsOneEngine(t *testing.T) {
	s := store(t, redistest.Start(t), nil, "pdr")
	put(t, s, record("prefill-0", 7, 1, 0), nil)
	for _, err := range []error{
		s.db.Set(t.Context(), s.engineKey("evil"), "x", 0).Err(),
		s.db.ZAdd(t.Context(), s.indexKey(), redis.Z{Score: float64(time.Now().Add(time.Hour).UnixMilli()), Member: "evil"}).Err(),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	g := newGateway(t, HandlerConfig{}, s)
	eventually(t, "the copy is whole", func() bool { return g.handler.Watches().Lost > 0 })
	w := openWatch(t, g.url()+watchPath, "all")
	w.want("sync {}")
	var list struct{ Engines []Listed }
	if got := send(t, "GET", g.url()+"/metadata/v1/engines", "all", nil); got.status != 200 || json.Unmarshal(got.body, &list) != nil || len(list.Engines) != 1 {
		t.Errorf("list: got %d %s", got.status, got.body)
	}
	put(t, s, record("decode-0", 7, 1, 0), nil)
	w.want(`put {"engine":"decode-0","generation":7}`)
}
