package config

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"pdrouter/internal/yamlfile"
)

// The values of Migration.Mode.
const (
	MigrationDisabled = "disabled"
	MigrationDryRun   = "dry_run"
	MigrationEnabled  = "enabled"
)

// MigrationUses are the values of Migration.Uses.
var MigrationUses = []string{"drain", "route", "warm", "replicate"}

// Migration moves the KV of conversations from one engine to another before it is needed there. Connectors vllm-nixl-pull, vllm-nixl-push and
// kvplane.
type Migration struct {
	// Mode is disabled, dry_run or enabled. dry_run: it is counted and logged what would be moved. Both dry_run and enabled have decode engines return
	// the token ids of prompts and answers, which clients do not see, and keep them in memory. Default disabled.
	Mode string `yaml:"mode"`
	// Uses are the occasions on which KV is moved. drain: the conversations of an engine that drains are moved to the engines that would serve their next
	// turns. route: with the policy cost, a conversation is moved to the engine that serves its next turn, where that is the best path. warm: an engine that is new, or has restarted, is given the conversations whose next turns it would serve. replicate: what many
	// conversations begin with, such as a system prompt, is copied from the only engine that has it to one that is less busy. For warm and
	// replicate engines are asked only while they have no prompts to compute. Default [drain, route].
	Uses []string `yaml:"uses"`
	// Memory bounds what is kept of conversations: 4 bytes for each token, and 400 and more for each conversation. The ones without a turn for
	// longest are forgotten first, and not moved. Default 64MiB.
	Memory yamlfile.Size `yaml:"memory"`
	// PerEngine is how many moves an engine may take part in at once, as their source or their target. Default 2.
	PerEngine int `yaml:"per_engine"`
	// TokensPerSecond is how many tokens of moves an engine may send or receive in a second, in the mean. Default 100000.
	TokensPerSecond int `yaml:"tokens_per_second"`
	// BytesPerSecond is how many bytes of moves one engine may send to one other in a second, in the mean, such as 2GiB. It does not count for engines
	// that do not say how large their blocks are. Default 0: not bounded.
	BytesPerSecond yamlfile.Size `yaml:"bytes_per_second"`
	// MinTokens is the least that is moved: shorter conversations are soon computed again. Default 256.
	MinTokens int `yaml:"min_tokens"`
	// MaxIdle is the time without a turn after which a conversation is not moved. Default 30m.
	MaxIdle time.Duration `yaml:"max_idle"`
	// PinnedFor is for how long what decode engines pin of their answers (vLLM's bidirectional_kv_xfer; connector vllm-nixl-pull, answers that are not
	// streamed) is left pinned, so that a move can read it without a request to the engine. It must be less than the engines' decoder_kv_blocks_ttl
	// (480 s unless set), as blocks that an engine has freed hold other tokens. It needs reclaim. Default 0: it is freed at once.
	PinnedFor time.Duration `yaml:"pinned_for"`
	// PinnedShare is the part of an engine's cache that may be pinned so, more than 0 and at most 1. Past it what has been pinned for longest is freed. Default 0.1.
	PinnedShare float64 `yaml:"pinned_share"`
	// Timeout bounds one move. Default 20s; less than the 30 s for which a stock engine keeps what it hands over.
	Timeout time.Duration `yaml:"timeout"`
}

// PinnedByDefault is for how long vLLM pins what it has answered, unless its decoder_kv_blocks_ttl says otherwise.
const PinnedByDefault = 480 * time.Second

// On reports whether conversations are kept, to move them or to say what would be moved.
func (m *Migration) On() bool { return m.Mode != "" && m.Mode != MigrationDisabled }

func (m Migration) withDefaults() Migration {
	setDefault(&m.Mode, MigrationDisabled)
	if m.Uses == nil {
		m.Uses = []string{"drain", "route"}
	}
	setDefault(&m.Memory, 64<<20)
	setDefault(&m.PerEngine, 2)
	setDefault(&m.TokensPerSecond, 100_000)
	setDefault(&m.MinTokens, 256)
	setDefault(&m.MaxIdle, 30*time.Minute)
	setDefault(&m.Timeout, 20*time.Second)
	setDefault(&m.PinnedShare, 0.1)
	return m
}

func (m Migration) validate(v *faults) {
	if m.Mode != MigrationDisabled && m.Mode != MigrationDryRun && m.Mode != MigrationEnabled {
		v.add("migration.mode", fmt.Sprintf("is %q", m.Mode), "disabled, dry_run or enabled")
	}
	for i, use := range m.Uses {
		key := fmt.Sprintf("migration.uses[%d]", i)
		if !slices.Contains(MigrationUses, use) {
			v.add(key, fmt.Sprintf("is %q", use), strings.Join(MigrationUses[:len(MigrationUses)-1], ", ")+" or "+MigrationUses[len(MigrationUses)-1])
		} else if slices.Contains(m.Uses[:i], use) {
			v.add(key, fmt.Sprintf("is %q again", use), "each use once")
		}
	}
	for _, f := range []struct {
		key string
		n   int
	}{
		{"memory", int(m.Memory)}, {"per_engine", m.PerEngine}, {"tokens_per_second", m.TokensPerSecond}, {"min_tokens", m.MinTokens},
	} {
		if f.n < 0 {
			v.add("migration."+f.key, fmt.Sprintf("is %d", f.n), "more than 0")
		}
	}
	if m.BytesPerSecond < 0 {
		v.add("migration.bytes_per_second", fmt.Sprintf("is %d", m.BytesPerSecond), "0 or more")
	}
	if m.MaxIdle < 0 {
		v.add("migration.max_idle", "is "+m.MaxIdle.String(), "more than 0")
	}
	if m.PinnedFor < 0 || m.PinnedFor > 0 && m.PinnedFor < time.Second {
		v.add("migration.pinned_for", "is "+m.PinnedFor.String(), "at least 1s, or 0")
	}
	if !(m.PinnedShare > 0 && m.PinnedShare <= 1) {
		v.add("migration.pinned_share", fmt.Sprintf("is %v", m.PinnedShare), "more than 0, at most 1")
	}
	if m.Timeout < 0 || m.Timeout > 30*time.Second {
		v.add("migration.timeout", "is "+m.Timeout.String(), "more than 0, at most 30s")
	}
}
