package main

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"pdrouter/internal/limits"
	"pdrouter/internal/redisdb"
	"pdrouter/internal/redistest"
	"pdrouter/metadata"
	"pdrouter/metadata/redisstore"
	"pdrouter/policies"
)

// page returns a page of the documentation.
func page(t *testing.T, name string) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("../../docs", name))
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// TestDocumentedRedisRights: with the rights that docs/metadata.md gives a gateway's user, records, limits and what gateways
// share about responses work.
func TestDocumentedRedisRights(t *testing.T) {
	_, after, _ := strings.Cut(page(t, "metadata.md"), "```\nuser default off\nuser pdrouter ")
	acl, _, found := strings.Cut(after, "\n```")
	if !found {
		t.Fatal("docs/metadata.md does not say which rights a gateway needs")
	}
	if want := append([]string{"on", ">PASSWORD"}, strings.Fields(redistest.Rights)...); !slices.Equal(strings.Fields(acl), want) {
		t.Errorf("docs/metadata.md gives the rights %q; want %q", strings.Fields(acl), want)
	}
	for _, right := range strings.Fields(redistest.ClusterRights) {
		if !strings.Contains(page(t, "metadata.md"), right) {
			t.Errorf("docs/metadata.md does not say that a cluster needs %s", right)
		}
	}
	acl = strings.Replace(acl, ">PASSWORD", ">a-password", 1)
	server := redistest.Start(t, append([]string{"--user", "default", "off", "--user", "pdrouter"}, strings.Fields(acl)...)...)
	password := filepath.Join(t.TempDir(), "password")
	if err := os.WriteFile(password, []byte("a-password\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	log := slog.New(slog.DiscardHandler)
	cfg := redisdb.Config{Address: server.Address(), Username: "pdrouter", PasswordFile: password}.WithDefaults()
	db, err := redisdb.Open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()

	store := redisstore.New(db, cfg.Prefix, nil, log)
	now := time.Now()
	rec := metadata.Record{
		Version: metadata.RecordVersion, Incarnation: metadata.Incarnation{Engine: "p", Generation: 1}, Role: metadata.Prefill,
		Size: metadata.Rank{DP: 1, PP: 1, TP: 1}, Published: now, Expires: now.Add(time.Minute),
	}
	if err := store.Put(t.Context(), rec); err != nil {
		t.Error(err)
	}
	if _, err := store.Engine(t.Context(), "p"); err != nil {
		t.Error(err)
	}
	if err := store.Delete(t.Context(), rec.Incarnation, rec.Rank); err != nil {
		t.Error(err)
	}

	ctx, stop := context.WithCancel(t.Context())
	var running sync.WaitGroup
	defer running.Wait()
	defer stop()
	most := limits.Limits{Concurrent: 1000} // more than is asked of the other gateway below
	one, other := limits.New(db, cfg.Prefix, log), limits.New(db, cfg.Prefix, log)
	for _, l := range []*limits.Limiter{one, other} {
		running.Go(func() { _ = l.Run(ctx) }) // it ends with ctx
	}
	for range most.Concurrent {
		one.Admit(time.Now(), "tenant", most, 0)
	}
	if err := db.Get(t.Context(), cfg.Prefix+":responses:resp_1").Err(); err != nil && strings.Contains(err.Error(), "NOPERM") {
		t.Error("what gateways share cannot be read:", err)
	}
	for end := time.Now().Add(20 * time.Second); ; time.Sleep(50 * time.Millisecond) {
		if _, no := other.Admit(time.Now(), "tenant", most, 0); no != nil {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("two gateways do not count together: %+v", other.Stats())
		}
	}
}

// TestDocumentedReasons: docs/metadata.md explains why engines are not pairable, each reason.
func TestDocumentedReasons(t *testing.T) {
	text := page(t, "metadata.md")
	for r := metadata.PairReason(1); r.String() != "unknown"; r++ {
		if !regexp.MustCompile("(?m)^\\| [a-z_`, ]*`" + r.String() + "`").MatchString(text) {
			t.Errorf("docs/metadata.md does not explain %s", r)
		}
	}
}

// TestDocumentedChoices: docs/routing.md explains every policy, and every reason for which a request is split or not.
func TestDocumentedChoices(t *testing.T) {
	_, err := policies.Parse("policy.yaml", []byte("default: {prefill: none_such}"))
	_, names, _ := strings.Cut(fmt.Sprint(err), "want ")
	want := strings.FieldsFunc(strings.ReplaceAll(names, " or ", ", "), func(r rune) bool { return r == ',' || r == ' ' })
	if len(want) < 5 {
		t.Fatalf("policies %q, of %v", want, err)
	}
	files, err := filepath.Glob("../../router/openai/*.go")
	if err != nil {
		t.Fatal(err)
	}
	reason := regexp.MustCompile(`(?m)^\s+(?:[Uu]nsplit\w+|[A-Z]\w+ +Reason) += "([^"]+)"`)
	before := len(want)
	for _, path := range append(files, "../../policies/policies.go") {
		b, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range reason.FindAllStringSubmatch(string(b), -1) {
			if m[1] != string(policies.NoDecode) { // such a request is not served: no_engine
				want = append(want, m[1])
			}
		}
	}
	if len(want)-before < 15 {
		t.Fatalf("reasons %q", want[before:])
	}
	text := page(t, "routing.md")
	for _, w := range want {
		if !regexp.MustCompile("(?m)^\\| [^|]*`" + regexp.QuoteMeta(w) + "`").MatchString(text) {
			t.Errorf("docs/routing.md does not explain %s", w)
		}
	}
}

// TestDocumentedPlaces: what the pages link to is there, headings included.
func TestDocumentedPlaces(t *testing.T) {
	pages, err := filepath.Glob("../../docs/*.md")
	if err != nil || len(pages) < 5 {
		t.Fatalf("pages %v: %v", pages, err)
	}
	link := regexp.MustCompile(`\]\(([^)#:\s]*)(#[^)\s]*)?\)`)
	for _, path := range append(pages, "../../README.md") {
		b, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range link.FindAllStringSubmatch(string(b), -1) {
			to := path
			if m[1] != "" {
				to = filepath.Join(filepath.Dir(path), m[1])
			}
			target, err := os.ReadFile(to)
			if err != nil && m[2] == "" {
				_, err = os.Stat(to) // a folder
			}
			if err != nil {
				t.Errorf("%s: %s: %v", path, m[0], err)
			} else if m[2] != "" && !hasHeading(string(target), m[2][1:]) {
				t.Errorf("%s: %s: no such heading", path, m[0])
			}
		}
	}
}

// hasHeading reports whether a page has a heading with this anchor.
func hasHeading(text, anchor string) bool {
	for line := range strings.Lines(text) {
		title, ok := strings.CutPrefix(strings.TrimLeft(line, "#"), " ")
		if !ok || !strings.HasPrefix(line, "#") {
			continue
		}
		title = regexp.MustCompile(`[^a-z0-9 _-]`).ReplaceAllString(strings.ToLower(strings.TrimSpace(title)), "")
		if strings.ReplaceAll(title, " ", "-") == anchor {
			return true
		}
	}
	return false
}
