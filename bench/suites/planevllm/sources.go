package planevllm

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"time"

	"pdrouter/bench/harness"
	"pdrouter/bench/load"
)

// account reads what decode's prompts came from since the last time, and has it judged, until it is right or five seconds are over: an
// engine counts behind its answer.
func (p *vllmPair) account(ctx context.Context, judge func(tokenSources) error) error {
	for end := time.Now().Add(5 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		now, err := sourcesOf(ctx, p.At[1])
		if err != nil {
			return err
		}
		err = judge(now.minus(p.sources))
		if err == nil || ctx.Err() != nil || time.Now().After(end) {
			p.sources = now
			if err != nil {
				err = fmt.Errorf("%w: %s: %w", load.ErrVoid, p.of, err)
			}
			return err
		}
	}
}

// tokenSources is how many tokens of its prompts an engine had from where.
type tokenSources struct{ external, cached, computed float64 }

func (s tokenSources) minus(was tokenSources) tokenSources {
	return tokenSources{s.external - was.external, s.cached - was.cached, s.computed - was.computed}
}

// handedOver says what is wrong with what so many new prompts of so many tokens have added: all of them must have come from prefill,
// but for the last token of each, which decode may compute again.
func (s tokenSources) handedOver(prompts, tokens int) error {
	n := float64(prompts)
	if s.external+s.cached+s.computed != n*float64(tokens) || s.external < n*float64(tokens-1) {
		return fmt.Errorf("of %d new prompts of %d tokens decode had %v tokens from prefill, %v from its cache and computed %v", prompts, tokens, s.external, s.cached, s.computed)
	}
	return nil
}

// atHand says the same of prompts that decode held already.
func (s tokenSources) atHand(prompts, tokens int) error {
	n := float64(prompts)
	if s.cached != n*float64(tokens-1) || s.computed != n || s.external != 0 {
		return fmt.Errorf("of %d prompts of %d tokens that decode held it had %v tokens from prefill, %v from its cache and computed %v", prompts, tokens, s.external, s.cached, s.computed)
	}
	return nil
}

// sourcesOf reads an engine's counters.
func sourcesOf(ctx context.Context, address string) (tokenSources, error) {
	status, said, err := harness.Get(ctx, "http://"+address+"/metrics")
	if err == nil && status != http.StatusOK {
		err = fmt.Errorf("bench: %s/metrics: status %d", address, status)
	}
	if err != nil {
		return tokenSources{}, err
	}
	return parseSources(string(said))
}

// parseSources reads them. A source that nothing has come from has no line.
func parseSources(text string) (s tokenSources, err error) {
	for line := range strings.Lines(text) {
		of, value, ok := strings.Cut(strings.TrimSpace(line), "} ")
		labels, found := strings.CutPrefix(of, "vllm:prompt_tokens_by_source_total{")
		if !ok || !found {
			continue
		}
		var n float64
		if _, err := fmt.Sscan(value, &n); err != nil {
			return s, fmt.Errorf("bench: %q has no number", line)
		}
		for source, sum := range map[string]*float64{"external_kv_transfer": &s.external, "local_cache_hit": &s.cached, "local_compute": &s.computed} {
			if strings.Contains(labels, `source="`+source+`"`) {
				*sum += n
			}
		}
	}
	return s, nil
}
