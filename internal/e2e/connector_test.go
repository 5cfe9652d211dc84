package e2e

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"pdrouter/internal/pdkvtest"
	"pdrouter/kvplane"
	"pdrouter/metadata"
)

// TestConnector has two engines of the vLLM connector's own code, without vLLM, hand KV over through the C library: requests leave
// at random moments on either side, and every byte is compared. The two ranks of prefill share the heads, or each has a copy of a latent
// cache.
func TestConnector(t *testing.T) {
	t.Run("heads", func(t *testing.T) { handOff(t, false) })
	t.Run("latent", func(t *testing.T) { handOff(t, true) })
}

func handOff(t *testing.T, latent bool) {
	python, err := exec.LookPath("python3")
	if err != nil {
		t.Skip("no python3")
	}
	library := pdkvtest.Library(t)
	g := pdkvtest.NewGateway(t)
	prefill, decode := metadata.Incarnation{Engine: "prefill-0", Generation: 1001}, metadata.Incarnation{Engine: "decode-0", Generation: 2002}
	type transfer struct {
		ID      string `json:"id"`
		Prefill string `json:"prefill"`
		Decode  string `json:"decode"`
	}
	plan := struct {
		Gateway     string            `json:"gateway"`
		Keys        string            `json:"keys"` // of records and tickets
		Tokens      map[string]string `json:"tokens"`
		Generations map[string]uint64 `json:"generations"`
		Seed        int               `json:"seed"`
		Latent      bool              `json:"latent"`
		Transfers   []transfer        `json:"transfers"`
	}{
		Gateway: g.URL, Keys: g.Keys, Seed: 8, Latent: latent,
		Tokens: map[string]string{
			prefill.Engine: g.Token(t, prefill.Engine, metadata.Prefill), decode.Engine: g.Token(t, decode.Engine, metadata.Decode),
		},
		Generations: map[string]uint64{prefill.Engine: prefill.Generation, decode.Engine: decode.Generation},
	}
	for range 40 {
		id := kvplane.NewTransferID()
		both := g.Ticket(t, id, prefill, decode)
		plan.Transfers = append(plan.Transfers, transfer{id.String(), both, both})
	}
	raw, err := json.Marshal(plan)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "plan.json")
	if err := os.WriteFile(path, raw, 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), python, "-B", filepath.Join(root(t), "kvplane", "vllm", "tests", "hand_off.py"), library, path)
	cmd.Stderr = t.Output()
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	var said struct {
		Read, Computed, Left int
		Refused, Ended       []map[string]int
	}
	if err := json.Unmarshal(out, &said); err != nil {
		t.Fatalf("%v: %q", err, out)
	}
	t.Logf("%+v", said)
	if said.Read < len(plan.Transfers)/2 || said.Left == 0 || len(said.Refused[0])+len(said.Refused[1]) > 0 {
		t.Errorf("%+v; want most of %d prompts read from prefill, some clients gone, no leg refused", said, len(plan.Transfers))
	}
}
