package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"pdrouter/bench/simulate"
)

// TestSimulateCommand: what cannot be replayed is refused by the name of its flag, and a table says where the trace was too short.
func TestSimulateCommand(t *testing.T) {
	path := filepath.Join(t.TempDir(), "trace.csv")
	if err := os.WriteFile(path, []byte("TIMESTAMP,ContextTokens,GeneratedTokens\n"+strings.Repeat("1,600,9\n2,600,9\n3,600,9\n4,600,9\n5,600,9\n6,600,9\n", 4)), 0o600); err != nil {
		t.Fatal(err)
	}
	for args, want := range map[string]string{
		"--engines 65":              "--engines 65; want 1 to 64",
		"--seeds 1001":              "--seeds 1001; want 1 to 1000",
		"--window 0s":               "--window 0s; want more than 0",
		"--ttft -1s":                "--ttft -1s; want more than 0",
		"--itl 0s":                  "--itl 0s; want more than 0",
		"--rate 1,NaN":              "--rate NaN; want more than 0, at most 10000",
		"--rate 1 --rate 2,1":       "--rate 1 is given twice; want each once",
		"--mix long":                `--mix "long"; want recorded, prompts/4, answers*4`,
		"--layout 4E":               "--layout is of the configuration's policy; want -c FILE beside it",
		"--layout 4F -c pdrouter.y": `--layout "4F"; want engines by role, such as 2P2D, 4D or 1P1D2E`,
	} {
		err := run(context.Background(), append([]string{"simulate"}, strings.Fields(args)...), new(bytes.Buffer))
		if err == nil || exitCode(err) != 2 || errors.Unwrap(err).Error() != want {
			t.Errorf("%s: got %v; want a usage error %s", args, err, want)
		}
	}
	var out bytes.Buffer
	err := run(context.Background(), []string{"simulate", "--alone", "--seeds", "1", "--mix", "recorded", "--rate", "2", "--window", "1m", "--trace", path}, &out)
	if want := "recorded at 2/s: requests come for 4.8 s, not for 1m0s: the trace has no more\n"; err != nil || !strings.HasSuffix(out.String(), want) {
		t.Errorf("got %v\n%s; want its end to be %s", err, out.String(), want)
	}
	gone, cancel := context.WithCancel(context.Background())
	cancel()
	if err := run(gone, []string{"simulate"}, &out); err == nil || err.Error() != "interrupted" {
		t.Errorf("got %v; want interrupted", err)
	}
}

// TestSimulateConversationsCommand: what cannot be replayed is refused by the name of its flag, and what is printed can be read by programs.
func TestSimulateConversationsCommand(t *testing.T) {
	for args, want := range map[string]string{
		"--engines 0":         "--engines 0; want 1 to 64",
		"--turns 1":           "--turns 1; want 2 to 6",
		"--pause 0s":          "--pause 0s; want more than 0",
		"--rate 0":            "--rate 0; want more than 0, at most 10000",
		"--uses drain,rescue": `--uses "rescue"; want drain, route, warm, replicate`,
		"--changes burn@3s":   `--changes "burn@3s"; want drain, lose, add, @, and a time such as 40s`,
	} {
		err := run(context.Background(), append([]string{"simulate", "conversations"}, strings.Fields(args)...), new(bytes.Buffer))
		if err == nil || exitCode(err) != 2 || errors.Unwrap(err).Error() != want {
			t.Errorf("%s: got %v; want a usage error %s", args, err, want)
		}
	}
	args := strings.Fields("simulate conversations --seeds 1 --rate 1 --window 1m --changes add@20s,drain@30s")
	var out bytes.Buffer
	if err := run(context.Background(), append(args, "-o", "json"), &out); err != nil {
		t.Fatal(err)
	}
	var rows []simulate.ConversationRow
	if err := json.Unmarshal(out.Bytes(), &rows); err != nil || len(rows) != 4 || rows[0].Turns != "all" || rows[0].Moves["drain moved"] == 0 {
		t.Errorf("got %v, %+v", err, rows)
	}
	out.Reset()
	if err := run(context.Background(), args, &out); err != nil || !strings.Contains(out.String(), "moves at 1/s: drain moved ") {
		t.Errorf("got %v\n%s", err, out.String())
	}
}
