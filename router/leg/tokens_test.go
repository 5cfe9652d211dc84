package leg

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"strings"
	"testing"

	"pdrouter/router/upstream"
)

// pieces reads a text in pieces of random length.
type pieces struct {
	rest []byte
	rng  *rand.Rand
}

func (p *pieces) Read(to []byte) (int, error) {
	if len(p.rest) == 0 {
		return 0, io.EOF
	}
	n := copy(to, p.rest[:min(len(p.rest), 1+p.rng.IntN(40))])
	p.rest = p.rest[n:]
	return n, nil
}

// TestReadDroppingIDs reads answers in pieces, at bounds about their size. Within the bound an answer is as it came, past it without the ids,
// and past that too large.
func TestReadDroppingIDs(t *testing.T) {
	const (
		before = `{"text":"\"prompt_token_ids\":[ and ]","choices":[{"token_ids":[7]}],`
		after  = `,"kv_transfer_params":{"remote_block_ids":[[1,2]]}}`
	)
	for _, key := range []string{`"prompt_token_ids":`, "\"prompt_token_ids\" :\n "} {
		for n := range 40 {
			ids := strings.Repeat("12345, ", n) + "6"
			whole, without := before+key+"["+ids+"]"+after, before+key+"[]"+after
			for max := len(without) - 10; max < len(whole)+10; max++ {
				for seed := range uint64(3) {
					got, dropped, err := readDroppingIDs(&pieces{[]byte(whole), rand.New(rand.NewPCG(seed, uint64(max)))}, max)
					name := fmt.Sprintf("%d ids, at most %d of %d bytes", n+1, max, len(whole))
					switch {
					case len(whole) <= max:
						if string(got) != whole || dropped || err != nil {
							t.Fatalf("%s: dropped %v, %v: %s", name, dropped, err, got)
						}
					case len(without) <= max:
						if string(got) != without || !dropped || err != nil {
							t.Fatalf("%s: dropped %v, %v: %s", name, dropped, err, got)
						}
					default:
						if !errors.Is(err, upstream.ErrTooLarge) {
							t.Fatalf("%s: %v: %s", name, err, got)
						}
					}
					if len(got) > max+512 {
						t.Fatalf("%s: %d bytes were kept", name, len(got))
					}
				}
			}
		}
	}
	for _, none := range []string{`{"a":"` + strings.Repeat("b", 200) + `"}`, `{"prompt_token_ids":null,"a":"` + strings.Repeat("b", 200) + `"}`} {
		if _, dropped, err := readDroppingIDs(strings.NewReader(none), 100); dropped || !errors.Is(err, upstream.ErrTooLarge) {
			t.Errorf("%s: dropped %v, %v", none, dropped, err)
		}
	}
	broken := errors.New("broken")
	if _, _, err := readDroppingIDs(io.MultiReader(strings.NewReader(before), failing{broken}), 1000); !errors.Is(err, broken) {
		t.Errorf("a connection that breaks: %v", err)
	}
}

type failing struct{ err error }

func (f failing) Read([]byte) (int, error) { return 0, f.err }

// TestReadDroppingIDsMemory has a list of many times the bound cost no more memory than the bound.
func TestReadDroppingIDsMemory(t *testing.T) {
	const bound = 64 << 10
	list := strings.Repeat("123456,", 1<<20) // 7 MiB
	answer := io.MultiReader(strings.NewReader(`{"prompt_token_ids":[`), strings.NewReader(list), bytes.NewReader([]byte(`1],"a":1}`)))
	got, dropped, err := readDroppingIDs(answer, bound)
	if string(got) != `{"prompt_token_ids":[],"a":1}` || !dropped || err != nil {
		t.Errorf("dropped %v, %v: %.100s", dropped, err, got)
	}
	if cap(got) > 2*bound {
		t.Errorf("the buffer has grown to %d bytes", cap(got))
	}
}
