package router

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestFault29Salt has two tenants ask with the same salts, in every shape.
func TestFault29Salt(t *testing.T) {
	file := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(file, []byte(strings.Repeat("k", minSealKey)+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	cfg := Config{IsolatePrefixCache: true, PrefixCacheSecretFile: file}
	here, err := newSealer(cfg, nil)
	if err != nil {
		t.Fatal(err)
	}
	there, err := newSealer(cfg, nil) // another gateway with the same secret
	if err != nil {
		t.Fatal(err)
	}
	salts := map[string]string{}
	for _, tenant := range []string{"a", "b", ""} {
		for _, salt := range []string{"", `"s"`, `"t"`, `""`} {
			got := here.seal(tenant, []byte(salt))
			if was, ok := salts[got]; ok {
				t.Errorf("tenant %q with salt %s has the salt of %s", tenant, salt, was)
			}
			salts[got] = tenant + " with " + salt
			if other := there.seal(tenant, []byte(salt)); other != got {
				t.Errorf("two gateways: %s and %s", got, other)
			}
		}
	}
	if here.seal("a", nil) != here.seal("a", []byte("null")) || here.seal("a", []byte(`"s"`)) != here.seal("a", []byte(`"\u0073"`)) {
		t.Error("one salt, written in two ways, is two")
	}
	for s := range shapesSplit {
		for _, own := range []string{``, `"cache_salt":"client",`, `"cache_salt":null,`} {
			in := `{"model":"m",` + own + `"messages":[],"input":"x","token_ids":[1],"sampling_params":{"max_tokens":9},"prompt":"x"}`
			b, herr := parseBody(shape(s), []byte(in), bodyLimits{})
			if herr != nil {
				t.Fatal(herr)
			}
			b.sealed = here.seal("a", b.salt)
			for _, leg := range [][]byte{b.prefill(nil, "id", []byte(kvJSON)), b.decode(nil, "id", []byte(kvJSON)), b.decode(nil, "id", nil)} {
				var got struct {
					Salt string `json:"cache_salt"`
				}
				if err := json.Unmarshal(leg, &got); err != nil {
					t.Fatal(err)
				}
				if `"`+got.Salt+`"` != b.sealed || strings.Count(string(leg), "cache_salt") != 1 {
					t.Errorf("%s with %q: %s", shape(s), own, leg)
				}
			}
		}
	}
}

func TestSealerKeys(t *testing.T) {
	if s, err := newSealer(Config{}, nil); s != nil || err != nil {
		t.Errorf("off: got %v, %v", s, err)
	}
	drawn, err := newSealer(Config{IsolatePrefixCache: true}, nil)
	if err != nil {
		t.Fatal(err)
	}
	if again, _ := newSealer(Config{IsolatePrefixCache: true}, drawn); again != drawn {
		t.Error("a reload has drawn another key: what is cached is lost")
	}
	if other, _ := newSealer(Config{IsolatePrefixCache: true}, nil); other.seal("a", nil) == drawn.seal("a", nil) {
		t.Error("two gateways have drawn the same key")
	}
	short := filepath.Join(t.TempDir(), "short")
	if err := os.WriteFile(short, []byte("short"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, file := range []string{short, short + "er"} {
		if _, err := newSealer(Config{IsolatePrefixCache: true, PrefixCacheSecretFile: file}, nil); err == nil {
			t.Errorf("%s: no error", file)
		}
	}
	if strings.Contains(drawn.String(), string(drawn.key)) {
		t.Error("String shows the key")
	}
}
