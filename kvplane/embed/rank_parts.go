package embed

import (
	"context"
	"log/slog"
	"net/http"
	"slices"
	"time"

	"pdrouter/auth/keys"
	"pdrouter/auth/records"
	"pdrouter/kvplane/memory"
	"pdrouter/metadata"
	"pdrouter/metadata/client"
)

// newClient speaks to the gateway's metadata routes.
func newClient(g Gateway, wire *http.Transport) (*client.Client, *keyFiles, error) {
	trusted := &keyFiles{}
	checker, err := trusted.records(g)
	if err != nil {
		return nil, nil, err
	}
	var trust metadata.Voucher
	if checker != nil {
		trust = checker
	}
	token := client.TokenFile(g.TokenFile)
	if _, err := token(); err != nil {
		return nil, nil, wrong(Refused, "embed: gateway.token_file: %w", err)
	}
	c, err := client.New(client.Config{URL: g.URL}, token, trust, wire)
	if err != nil {
		return nil, nil, wrong(Refused, "embed: gateway: %w", err)
	}
	if g.SignKey == "" {
		return c, trusted, nil
	}
	key, err := keys.Load(g.SignKey)
	if err != nil {
		return nil, nil, wrong(Refused, "embed: gateway.sign_key: %w", err)
	}
	signer, err := records.AgentSigner(key)
	if err != nil {
		return nil, nil, wrong(Refused, "embed: gateway.sign_key: %w", err)
	}
	c.SignWith(signer)
	return c, trusted, nil
}

// keyFiles are public keys that are read again, so that keys can be rotated under a running engine.
type keyFiles struct{ sets []*keys.Trusted }

// reloadEvery is how often. It bounds how long a key that was withdrawn is still trusted.
const reloadEvery = 10 * time.Second

// records checks what gateways sign, records and tickets; nil if no keys are configured for that.
func (k *keyFiles) records(g Gateway) (*records.Records, error) {
	if len(g.RecordKeys) == 0 {
		return nil, nil
	}
	set, err := k.load(g.RecordKeys)
	if err != nil {
		return nil, err
	}
	r, err := records.New(nil, set)
	if err != nil {
		return nil, wrong(Refused, "embed: gateway.record_keys: %w", err)
	}
	return r, nil
}

func (k *keyFiles) load(paths []string) (*keys.Trusted, error) {
	set, err := keys.LoadTrusted(paths...)
	if err != nil {
		return nil, wrong(Refused, "embed: keys: %w", err)
	}
	k.sets = append(k.sets, set)
	return set, nil
}

// run reads them again until ctx ends.
func (k *keyFiles) run(ctx context.Context, log *slog.Logger) {
	if len(k.sets) == 0 {
		return
	}
	tick := time.NewTicker(reloadEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		for _, set := range k.sets {
			if err := set.Reload(); err != nil {
				log.Error("keys could not be read again", "err", err)
			}
		}
	}
}

// readable refuses memory that is not mapped at its first, a middle or its last byte. Where the kernel does not tell,
// everything is taken.
func readable(m *metadata.Region) error {
	var b [1]byte
	for _, at := range [...]uint64{m.Base, m.Base + m.Length/2, m.Base + m.Length - 1} {
		if err := readByte(b[:], at); err != nil {
			return wrong(Argument, "embed: layer %d: memory at %#x cannot be read: %w", m.Layer, at, err)
		}
	}
	return nil
}

// memoryOf returns the stretches that hold all regions, none of which overlap.
func memoryOf(kind string, regions []metadata.Region) []memory.Region {
	sorted := slices.Clone(regions)
	slices.SortFunc(sorted, func(a, b metadata.Region) int {
		switch {
		case a.Device != b.Device:
			return a.Device - b.Device
		case a.Base < b.Base:
			return -1
		case a.Base > b.Base:
			return 1
		}
		return 0
	})
	var out []memory.Region
	for _, r := range sorted {
		m := memory.Region{Base: r.Base, Length: r.Length}
		if kind == "vram" {
			m.Type, m.Device = "vram", r.Device
		}
		if n := len(out); n > 0 && out[n-1].Device == m.Device && m.Base < out[n-1].Base+out[n-1].Length {
			out[n-1].Length = max(out[n-1].Length, m.Base+m.Length-out[n-1].Base)
			continue
		}
		out = append(out, m)
	}
	return out
}
