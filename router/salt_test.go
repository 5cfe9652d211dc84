package router_test

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"pdrouter/internal/routertest"
	"pdrouter/router"
	"pdrouter/router/config"
	"pdrouter/router/openai"
	"pdrouter/router/reason"
)

// TestFault29Salt has two tenants ask with the same salts, in every shape.
func TestFault29Salt(t *testing.T) {
	file := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(file, []byte(strings.Repeat("k", openai.MinSealKey)+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	cfg := config.Config{IsolatePrefixCache: true, PrefixCacheSecretFile: file}
	here, err := router.NewSealer(cfg, nil)
	if err != nil {
		t.Fatal(err)
	}
	there, err := router.NewSealer(cfg, nil) // another gateway with the same secret
	if err != nil {
		t.Fatal(err)
	}
	salts := map[string]string{}
	for _, tenant := range []string{"a", "b", ""} {
		for _, salt := range []string{"", `"s"`, `"t"`, `""`} {
			got := here.Seal(tenant, []byte(salt))
			if was, ok := salts[got]; ok {
				t.Errorf("tenant %q with salt %s has the salt of %s", tenant, salt, was)
			}
			salts[got] = tenant + " with " + salt
			if other := there.Seal(tenant, []byte(salt)); other != got {
				t.Errorf("two gateways: %s and %s", got, other)
			}
		}
	}
	if here.Seal("a", nil) != here.Seal("a", []byte("null")) || here.Seal("a", []byte(`"s"`)) != here.Seal("a", []byte(`"\u0073"`)) {
		t.Error("one salt, written in two ways, is two")
	}
	for s := range int(openai.ShapeGenerate) + 1 {
		for _, own := range []string{``, `"cache_salt":"client",`, `"cache_salt":null,`} {
			in := `{"model":"m",` + own + `"messages":[],"input":"x","token_ids":[1],"sampling_params":{"max_tokens":9},"prompt":"x"}`
			b, herr := openai.ParseBody(openai.Shape(s), []byte(in), openai.Limits{})
			if herr != nil {
				t.Fatal(herr)
			}
			b.Sealed = here.Seal("a", b.Salt)
			for _, l := range [][]byte{b.AppendPrefill(nil, "id", []byte(`"kv_transfer_params":{"do_remote_decode":true}`)), b.AppendDecode(nil, "id", []byte(`"kv_transfer_params":{"do_remote_decode":true}`)), b.AppendDecode(nil, "id", nil)} {
				var got struct {
					Salt string `json:"cache_salt"`
				}
				if err := json.Unmarshal(l, &got); err != nil {
					t.Fatal(err)
				}
				if `"`+got.Salt+`"` != b.Sealed || strings.Count(string(l), "cache_salt") != 1 {
					t.Errorf("%s with %q: %s", openai.Shape(s), own, l)
				}
			}
		}
	}
}

func TestSealerKeys(t *testing.T) {
	if s, err := router.NewSealer(config.Config{}, nil); s != nil || err != nil {
		t.Errorf("off: got %v, %v", s, err)
	}
	drawn, err := router.NewSealer(config.Config{IsolatePrefixCache: true}, nil)
	if err != nil {
		t.Fatal(err)
	}
	if again, _ := router.NewSealer(config.Config{IsolatePrefixCache: true}, drawn); again != drawn {
		t.Error("a reload has drawn another key: what is cached is lost")
	}
	if other, _ := router.NewSealer(config.Config{IsolatePrefixCache: true}, nil); other.Seal("a", nil) == drawn.Seal("a", nil) {
		t.Error("two gateways have drawn the same key")
	}
	short := filepath.Join(t.TempDir(), "short")
	if err := os.WriteFile(short, []byte("short"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, file := range []string{short, short + "er"} {
		if _, err := router.NewSealer(config.Config{IsolatePrefixCache: true, PrefixCacheSecretFile: file}, nil); err == nil {
			t.Errorf("%s: no error", file)
		}
	}
	if strings.Contains(drawn.String(), string(drawn.Key)) {
		t.Error("String shows the key")
	}
}

// mediaIDBodies name media by ids wherever engines read them, with %s in place of each id.
var mediaIDBodies = []struct {
	shape openai.Shape
	path  string
	body  string
}{
	{openai.ShapeChat, routertest.PathChat, `{"model":"tiny","messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"data:,a"},"uuid":%[1]s},` +
		`{"uuid" : %[1]s , "type":"input_audio","input_audio":null},{"video_url":null,"uuid":%[1]s}]},{"role":"tool","content":[{"audio_embeds":null,"uuid":%[1]s}]}]}`},
	{openai.ShapeChat, routertest.PathChat, `{"model":"tiny","messages":[{"role":"user","content":{"type":"image_embeds","\u0075uid":%s}}]}`},
	{openai.ShapeChat, routertest.PathChat, `{"model":"tiny","messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"data:,a","uuid":%s}}]}]}`},
	{openai.ShapeChat, routertest.PathChat, `{"model":"tiny","n":2,"messages":[{"role":"user","content":[{"type":"image_url","image_url":null,"uuid":%s}]}]}`},
	{openai.ShapeResponses, routertest.PathResponses, `{"model":"tiny","input":[{"role":"user","content":[{"type":"input_image","image_url":"data:,a","uuid":%[1]s}]},` +
		`{"type":"function_call_output","call_id":"a","output":[{"type":"input_image","uuid":%[1]s}]}],"previous_input_messages":[{"content":[{"uuid":%[1]s}]}]}`},
	{openai.ShapeMessages, routertest.PathMessages, `{"model":"tiny","max_tokens":9,"system":[{"type":"text","text":"a","uuid":%[1]s}],"messages":[{"role":"user","content":[{"type":"tool_result",` +
		`"content":[{"type":"image","source":{"type":"base64","data":"a","uuid":%[1]s},"uuid":%[1]s}]}]}]}`},
	{openai.ShapeGenerate, routertest.PathGenerate, `{"model":"tiny","token_ids":[1],"sampling_params":{"max_tokens":9},"content_parts":[{"type":"image_url","url":null,"uuid":%[1]s},{"uuid":%[1]s}],"features":null}`},
	{openai.ShapeBatch, routertest.PathBatch, `{"model":"tiny","messages":[[{"role":"user","content":[{"uuid":%[1]s}]}],[{"role":"user","content":[{"uuid":%[1]s}]}]]}`},
	{openai.ShapePass, "/v1/embeddings", `{"model":"tiny","input":[[{"role":"user","content":[{"uuid":%[1]s}]}]],"messages":[{"content":[{"uuid":%[1]s}]}]}`},
	{openai.ShapePass, "/score", `{"model":"tiny","queries":{"content":[{"uuid":%[1]s}]},"documents":[{"content":[{"uuid":%[1]s}]}],"data_1":{"content":[{"uuid":%[1]s}]},` +
		`"data_2":[{"content":[{"uuid":%[1]s}]}],"items":[{"content":[{"uuid":%[1]s}]}],"text_1":[{"content":[{"uuid":%[1]s}]}]}`},
	{openai.ShapePass, "/pooling", `{"model":"tiny","data":{"a":[{"uuid":%s}]}}`},
	{openai.ShapePass, "/v1/chat/completions/render", `{"model":"tiny","messages":[{"role":"user","content":[{"type":"image_url","image_url":null,"uuid":%s}]}]}`},
}

// uuidsOf collects every member named uuid, at any depth.
func uuidsOf(t *testing.T, body []byte) (all []string) {
	t.Helper()
	var walk func(any)
	walk = func(v any) {
		switch v := v.(type) {
		case []any:
			for _, e := range v {
				walk(e)
			}
		case map[string]any:
			for key, e := range v {
				if key == "uuid" {
					s, _ := json.Marshal(e)
					all = append(all, string(s))
				}
				walk(e)
			}
		}
	}
	var v any
	if err := json.Unmarshal(body, &v); err != nil {
		t.Fatalf("%v: %s", err, body)
	}
	walk(v)
	return all
}

// TestFault29MediaIDs has two tenants name media by the same ids, wherever engines read them: no engine gets an id that the other may name.
func TestFault29MediaIDs(t *testing.T) {
	key := &openai.Sealer{Key: []byte(strings.Repeat("k", openai.MinSealKey))}
	lim := openai.Limits{Isolate: true}
	parse := func(s openai.Shape, body, tenant string) *openai.Body {
		t.Helper()
		read := openai.ParseBody
		if s == openai.ShapePass || s == openai.ShapeBatch {
			read = openai.ParsePassed
		}
		b, e := read(s, []byte(body), lim)
		if e != nil {
			t.Fatalf("%s: %v", body, e)
		}
		b.Sealed, b.MediaIDs = key.Seal(tenant, b.Salt), key.MediaIDs(tenant)
		return b
	}
	want := map[string]string{}
	for i, row := range mediaIDBodies {
		for _, tenant := range []string{"a", "b", ""} {
			for _, id := range []string{`"x"`, `""`, `"\ud800\u0000é"`, `"` + strings.Repeat("y", 1000) + `"`} {
				in := strings.ReplaceAll(strings.ReplaceAll(row.body, "%[1]s", id), "%s", id)
				n := len(uuidsOf(t, []byte(in)))
				b := parse(row.shape, in, tenant)
				legs := [][]byte{b.AppendVariant(nil, nil, openai.VariantDecode, "id", nil)}
				if b.Passthrough == nil {
					legs = append(legs, b.AppendPrefill(nil, "id", []byte(`"kv_transfer_params":{"do_remote_decode":true}`)), b.AppendDecode(nil, "id", []byte(`"kv_transfer_params":{"do_remote_decode":true}`)))
				}
				for _, l := range legs {
					got := uuidsOf(t, l)
					if len(got) != n {
						t.Errorf("body %d: %d ids become %d: %s", i, n, len(got), l)
					}
					for _, uuid := range got {
						if was := want[tenant+id]; was != "" && was != uuid || uuid == id || len(uuid) != 45 {
							t.Errorf("body %d: tenant %q's %s is %s, and was %q", i, tenant, id, uuid, was)
						}
						want[tenant+id] = uuid
					}
				}
			}
		}
		null := strings.ReplaceAll(strings.ReplaceAll(row.body, "%[1]s", "null"), "%s", "null")
		for _, uuid := range uuidsOf(t, parse(row.shape, null, "a").AppendVariant(nil, nil, openai.VariantDecode, "id", nil)) {
			if uuid != "null" {
				t.Errorf("body %d: null became %s", i, uuid)
			}
		}
		for _, odd := range []string{"5", "true", "[]", `["x"]`, `{}`, `{"a":"x"}`, `"x","uuid":"y"`, `"x","\u0075uid":null`,
			`"` + strings.Repeat("x", openai.MaxMediaID) + `"`} {
			in := strings.ReplaceAll(strings.ReplaceAll(row.body, "%[1]s", odd), "%s", odd)
			b, e := openai.ParseBody(row.shape, []byte(in), lim)
			if e == nil || e.Status != 400 || e.Reason != reason.BadField && e.Reason != reason.DuplicateKey {
				t.Errorf("body %d: uuid %s is accepted: %v, %v", i, odd, b, e)
			}
		}
	}
	seen := map[string]string{}
	for from, uuid := range want {
		if other, ok := seen[uuid]; ok {
			t.Errorf("%q and %q are one id", from, other)
		}
		seen[uuid] = from
	}
	if other := (&openai.Sealer{Key: []byte(strings.Repeat("l", openai.MinSealKey))}).MediaIDs("a"); other.SealID([]byte(`"x"`)) == want[`a"x"`] {
		t.Error("an id does not depend on the secret")
	}
	in := `{"model":"tiny","messages":[{"content":[` + strings.Repeat(`{"uuid":"a"},`, openai.MaxMediaIDs) + `{"uuid":"a"}]}]}`
	if _, e := openai.ParseBody(openai.ShapeChat, []byte(in), lim); e == nil || e.Reason != reason.OverCap {
		t.Errorf("%d ids: %v", openai.MaxMediaIDs+1, e)
	}
}

// TestFault29MediaAtTheEdge sends bodies with media ids to gateways that isolate tenants or do not.
func TestFault29MediaAtTheEdge(t *testing.T) {
	const features = `{"model":"tiny","token_ids":[1],"sampling_params":{"max_tokens":9},"features":%s}`
	for _, isolate := range []bool{true, false} {
		t.Run(fmt.Sprint("isolated ", isolate), func(t *testing.T) {
			e := routertest.NewAnyEngine(t, routertest.JSONAnswer(200, `{"choices":[{"index":0}]}`))
			cfg := routertest.AnyFleet(e)
			cfg.IsolatePrefixCache = isolate
			g := routertest.Start(t, cfg, router.Parts{Clients: byName{}})
			for i, row := range mediaIDBodies {
				ids := map[string]bool{}
				for _, tenant := range []string{"Bearer alice", "Bearer bob", "Bearer alice"} {
					in := strings.ReplaceAll(strings.ReplaceAll(row.body, "%[1]s", `"x"`), "%s", `"x"`)
					if r := g.Post(row.path, in, "Authorization", tenant); r.Status != 200 {
						t.Fatalf("body %d: status %d: %s", i, r.Status, r.Body)
					}
					for _, q := range e.All() {
						for _, uuid := range uuidsOf(t, []byte(q.Body)) {
							ids[uuid] = true
							if isolate == (uuid == `"x"`) {
								t.Errorf("body %d, isolated %v: the engine got %s", i, isolate, q.Body)
							}
						}
					}
				}
				if n := len(ids); isolate && n != 2 || !isolate && n != 1 {
					t.Errorf("body %d: %d ids of two tenants", i, n)
				}
			}
			for _, value := range []string{`{"mm_hashes":{"image":["x"]},"mm_placeholders":{"image":[{"offset":0,"length":1}]}}`, `{}`, `"x"`} {
				r := g.Post(routertest.PathGenerate, strings.ReplaceAll(features, "%s", value), "Authorization", "Bearer alice")
				if isolate && (r.Status != 400 || *routertest.ErrorOf(t, r.Body).Param != "features" || len(e.All()) != 0) || !isolate && (r.Status != 200 || !strings.Contains(e.All()[0].Body, value)) {
					t.Errorf("isolated %v: features %s: status %d: %s", isolate, value, r.Status, r.Body)
				}
			}
		})
	}
}
