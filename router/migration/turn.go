package migration

import (
	"cmp"
	"slices"
	"time"

	"pdrouter/router/config"
	"pdrouter/router/connector"
	"pdrouter/router/fleet"
	"pdrouter/router/openai"
	"pdrouter/router/tokens"
)

// Moves reports whether engines of this connector can hand over KV when the gateway asks for it.
func Moves(c connector.Connector) bool { return c.Traits().Stock != nil || c.Traits().Publishes }

// Keeps reports whether the gateway keeps conversations of such requests. room is how many bytes the prompt's token ids may take of an answer.
func Keeps(model *fleet.Model, b *openai.Body, room int) bool {
	switch {
	case b.Shape != openai.ShapeChat && b.Shape != openai.ShapeCompletions, b.Passthrough != nil, b.N != 1, b.Prompts != 1,
		b.Unsplittable != "", b.Rendered() == openai.RenderedMedia, // of media there is more to a block than its tokens
		model.ForwardsAuthorization, // moves have no client whose credentials they could carry
		!Moves(model.Connector), b.PromptTokens()*bytesOfID > room:
		return false
	}
	return true
}

// bytesOfID is what a token id takes in an answer, with its comma.
const bytesOfID = 8

// Turn is what a request says of a conversation when it is over.
type Turn struct {
	Model   string // the configuration's
	Asked   string // the model or adapter that the client names
	Adapter string // "" is the model itself
	Tenant  string
	Session uint64       // a hash of what names its session; 0 if nothing does
	Body    *openai.Body // of the request; it is not kept
	Identity

	// IDs to Decode are set at its end. Before, IDs are those of the prompt if the client sends them.
	IDs    []uint32 // of prompt and answer; they must not be changed afterwards
	Answer string   // by which Keep knows its answer; "" if decode pins nothing of it
	Prompt int      // how many of them are the prompt's
	Trace  *fleet.PromptTrace

	Prefill, Decode *fleet.Engine // that have the KV of the prompt, and of all; Prefill is nil if decode served alone
}

// Identity is what a body says of its conversation.
type Identity struct {
	// Names are those of the turn: the last is its own, those before are of the turns that may have come before it. Without any its conversation is
	// not kept.
	Names    []tokens.Sum
	Opening  tokens.Sum // of its conversation, by which its session knows it; zero: that cannot be told
	Salt     []byte     // the cache's, as engines get it, JSON; nil: none. It is not kept
	SaltText string     // what it says
	Estimate int        // tokens of the prompt, as policies count them
}

// NewTurn is the turn that a request begins.
func NewTurn(model *fleet.Model, adapter string, b *openai.Body, tenant string, session uint64) Turn {
	t := Turn{Model: model.Name, Asked: cmp.Or(b.Model, model.Name), Adapter: adapter, Tenant: tenant, Session: session, Body: b}
	if b.Shape == openai.ShapeCompletions {
		t.IDs = tokens.ParseIDs(b.PromptIDs())
		t.Prompt = len(t.IDs)
	}
	return t
}

// Note keeps a conversation after a turn, in place of what is kept of its turns before. It does nothing while migration.mode is disabled.
//
// A turn belongs to the conversation whose prompt its own prompt begins with: message by message in a chat, else by every 64 tokens. Where its
// session has a name, a chat also belongs to the conversation of that session that began with the same messages, up to the first that is an answer:
// the client has edited, or left out, some after these. Tenants, models, salts and sessions have nothing in common.
//
// It returns the last move of the conversation between its turn before and this one, nil if there was none; and whether there is a move that may be due.
func (p *Plans) Note(s *Snapshot, t *Turn, now time.Time) (moved *Ended, due bool) {
	if !s.Config.Migration.On() || len(t.Names) == 0 {
		return nil, false
	}
	last := len(t.Names) - 1
	c := &conversation{
		key: t.Names[last], opening: t.Opening, model: t.Model, asked: t.Asked, adapter: t.Adapter, session: t.Session,
		salt: slices.Clone(t.Salt), saltText: t.SaltText, // the body's bytes are used again
		ids: slices.Clip(t.IDs), prompt: t.Prompt, trace: t.Trace, turned: now, begun: now, turns: decayed{1, now},
		scale: float64(t.Estimate) / float64(max(1, t.Prompt)),
	}
	c.at[fleet.Decode] = place{t.Decode, s.Fleet.RunOf(t.Decode)}
	if t.Prefill != nil {
		c.at[fleet.Prefill] = place{t.Prefill, s.Fleet.RunOf(t.Prefill)}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if was := p.known.put(t.Tenant, c, t.Names[:last]); was != nil {
		c.follow(was, s.Config.Migration.MaxIdle)
		moved = was.lastMove
	}
	if s.Config.Migration.Mode != config.MigrationEnabled || !p.known.has(c) {
		return moved, false
	}
	p.pins.claim(t.Answer, c, s.Config.Migration.PinnedFor)
	for _, at := range c.at { // its engine may have begun to drain during the turn
		if at.engine != nil && p.lanes[lane{reason: ForDrain, from: at.engine}] != nil {
			p.leaveLocked(s, at.engine, c, now)
			due = true
		}
	}
	return moved, due
}

// identify reads the turn's identity from its body.
func (t *Turn) identify() {
	t.Estimate = t.Body.PromptTokens()
	if salt := t.Body.CacheSalt(); openai.Given(salt) {
		t.Salt, t.SaltText = salt, t.Body.SaltText()
	}
	if t.Body.Shape != openai.ShapeChat {
		t.Names = tokens.PromptOfIDs(t.Asked, t.Tenant, t.Body.CacheSalt(), t.IDs[:t.Prompt])
	}
	answered := false
	for _, b := range tokens.PromptOf(t.Asked, t.Tenant, t.Body) { // of a chat
		t.Names = append(t.Names, b.Sum)
		if answered = answered || !b.User; !answered && t.Session != 0 {
			t.Opening = b.Sum
			t.Opening[0] ^= t.Session
		}
	}
	for i := range t.Names {
		t.Names[i][0] ^= t.Session
	}
}
