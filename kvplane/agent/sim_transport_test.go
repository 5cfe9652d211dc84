package agent

import (
	"errors"
	"hash/crc64"
	"slices"
	"time"

	"pdrouter/kvplane/memory"
	"pdrouter/kvplane/transport"
	"pdrouter/metadata"
)

// simTransport is one node's end of the simulated network. With fences it behaves like tcp, without like NIXL.
type simTransport struct {
	s       *sim
	name    string // of the agent
	node    *simNode
	peers   map[string]*simLink
	links   []*simLink // in the order of their making: no map decides an order
	arrived []transport.Incoming
	landing []*simChunk     // waits for the owner's poll
	flushed []*simWrite     // has landed; the owner's poll sends the notification
	barred  map[string]bool // whose writes are refused
	passes  int
}

// simFencer is a simTransport that can fence.
type simFencer struct{ *simTransport }

// simLink is what a node keeps about a peer that it has connected to.
type simLink struct {
	from, to *simNode
	as       string // the agent's name at this end
	agent    string // and at the other
	lost     bool
	broken   bool // the next use finds out that it is lost
	leaving  bool // disconnected while writes were in progress
	writing  []*simWrite
	grids    *simGrids // made ready, or about to be
}

var (
	errSimLost = errors.New("simulated: connection lost")
	errSimPost = errors.New("simulated: not posted")
)

func (t *simTransport) Name() string          { return "sim" }
func (t *simTransport) Polled() bool          { return t.s.polled }
func (t *simTransport) Wake() <-chan struct{} { return nil }

func (t *simTransport) Open(string, []memory.Region) ([]byte, string, error) {
	return nil, "", errors.New("the simulator opens nothing")
}

// Close ends what is under way. Only a process on the same host may still copy what it has begun to.
func (t *simTransport) Close() error {
	for _, l := range t.links {
		for _, w := range slices.Clone(l.writing) {
			for _, c := range w.chunks {
				if !c.left {
					c.drop()
				}
			}
			w.ended = true
		}
		l.writing, l.lost = nil, true
	}
	for _, c := range t.landing {
		c.drop()
	}
	if t.s.oneHost && !t.s.fences {
		t.s.cutTails(func(l *simLink) bool { return l.from.dead }, t.node)
		return nil
	}
	for _, n := range t.s.nodes {
		for _, l := range slices.Clone(n.t.links) {
			if l.to == t.node && l.agent == t.name {
				for _, w := range slices.Clone(l.writing) {
					w.cut()
				}
			}
		}
	}
	t.s.cutTails(func(*simLink) bool { return true }, t.node)
	return nil
}

// waiting says that a poll would find something.
func (t *simTransport) waiting() bool {
	return len(t.arrived) > 0 || len(t.landing) > 0 || len(t.flushed) > 0
}

func (t *simTransport) Connect(peer metadata.Record) error {
	s := t.s
	l := t.peers[peer.Agent]
	switch {
	case l != nil && l.leaving:
		return transport.ErrBusy
	case l != nil:
		return transport.ErrKnownPeer
	}
	t.node.checkVoid("connects to", peer.Incarnation)
	to := s.agents[peer.Agent]
	l = &simLink{from: t.node, to: to, as: t.name, agent: peer.Agent}
	t.peers[peer.Agent] = l
	t.links = append(t.links, l)
	s.trouble(t.node, to)
	s.mix('c', uint64(t.node.record.Process.PID), uint64(to.record.Process.PID))
	s.note("%s connects to %s", t.node.record.Agent, peer.Agent)
	switch {
	case l.nobody() && s.fences:
		s.after(s.some(5*time.Millisecond), func() { l.lose() })
	case l.nobody():
		l.broken = true
	case !s.reaches(t.node, to) && s.fences:
		s.after(s.some(5*time.Second), func() {
			if !s.reaches(t.node, to) {
				l.lose()
			}
		})
	case s.fences:
		s.after(s.some(200*time.Microsecond), func() { s.supersede(l) })
	}
	return nil
}

// nobody says that the process at the other end is dead.
func (l *simLink) nobody() bool { return l.to.dead }

// supersede ends what an older connection of the same pair had under way.
func (s *sim) supersede(l *simLink) {
	for _, old := range l.from.t.links {
		if old != l && old.to == l.to {
			for _, w := range slices.Clone(old.writing) {
				w.cut()
			}
		}
	}
}

func (t *simTransport) Disconnect(agent string) {
	l := t.peers[agent]
	if l == nil {
		return
	}
	t.s.note("%s disconnects from %s, %d writes in progress", t.node.record.Agent, agent, len(l.writing))
	l.lost = true
	if t.s.fences || len(l.writing) == 0 {
		delete(t.peers, agent)
		for _, w := range slices.Clone(l.writing) {
			w.fail()
		}
	} else {
		l.leaving = true
	}
	if len(l.writing) == 0 {
		t.links = slices.DeleteFunc(t.links, func(x *simLink) bool { return x == l })
	}
}

// link finds a peer that can be used.
func (t *simTransport) link(agent string) (*simLink, error) {
	l := t.peers[agent]
	switch {
	case t.node.dead:
		t.s.fail("panic", "%s is dead and sends", t.node.record.Agent)
	case l == nil || l.leaving:
		return nil, transport.ErrUnknownPeer
	case l.lost:
		return nil, transport.ErrPeerLost
	}
	t.node.checkVoid("sends to", l.to.run.inc)
	if l.broken {
		l.lose()
		return nil, transport.ErrPeerLost
	}
	return l, nil
}

// lose ends a connection and tells its owner. Where fences are, writes end first and late bytes may still come.
func (l *simLink) lose() {
	if l.lost || l.from.dead {
		return
	}
	l.lost = true
	s := l.from.s
	s.trouble(l.from, l.to)
	s.note("%s loses %s", l.as, l.agent)
	if s.fences {
		for _, w := range slices.Clone(l.writing) {
			w.fail()
		}
	}
	l.from.arrive(transport.Incoming{Kind: transport.PeerLost, Agent: l.agent, Err: errSimLost}, true)
}

func (t *simTransport) Send(agent string, body []byte) error {
	l, err := t.link(agent)
	if err != nil {
		return err
	}
	t.s.deliver(l, body)
	return nil
}

var simTable = crc64.MakeTable(crc64.ECMA)

// deliver carries a message: late, twice, damaged, to somebody else, or not at all.
func (s *sim) deliver(l *simLink, body []byte) {
	from, to := l.from, l.to
	body = slices.Clone(body)
	in := transport.Incoming{Kind: transport.MessageReceived, Agent: l.as, Body: body}
	s.mix('m', uint64(from.record.Process.PID), uint64(to.record.Process.PID), uint64(len(body)), crc64.Checksum(body, simTable))
	s.forge(l)
	if s.strike(faultLose) || !s.reaches(from, to) || l.nobody() {
		s.trouble(from, to)
		return
	}
	if s.strike(faultAges) {
		d := s.extent(faultAges, 3*time.Minute)
		s.ages = max(s.ages, s.now+d)
		s.carry(to, in, d)
	}
	if s.strike(faultGarble) {
		s.trouble(from, to)
		d := s.dice[faultGarble]
		if in.Body = slices.Clone(body); d.IntN(3) == 0 {
			in.Body = in.Body[:d.IntN(len(body))]
		} else {
			in.Body[d.IntN(len(body))] ^= byte(1 << d.IntN(8))
		}
	}
	if s.strike(faultMisdeliver) {
		d := s.dice[faultMisdeliver]
		other, as := s.nodes[d.IntN(len(s.nodes))], in
		if other == to {
			as.Agent = s.nodes[d.IntN(len(s.nodes))].record.Agent
		}
		s.carry(other, as, s.some(5*time.Millisecond))
	}
	d := s.delay()
	if d > simPrompt {
		s.trouble(from, to)
	}
	s.carry(to, in, d)
	if s.strike(faultDouble) {
		d := s.delay()
		if s.weight[faultLate] > 0 && s.dice[faultLate].IntN(2) == 0 {
			s.counts.faults[faultLate]++
			d = s.extent(faultLate, 4*s.times.Wait)
		}
		s.carry(to, in, d)
	}
}

// delay draws how long a message takes.
func (s *sim) delay() time.Duration {
	switch {
	case s.strike(faultLate):
		return s.extent(faultLate, 4*s.times.Wait)
	case s.strike(faultDelay):
		return s.extent(faultDelay, 2*time.Second)
	}
	return 20*time.Microsecond + s.some(300*time.Microsecond)
}

func (s *sim) carry(to *simNode, in transport.Incoming, d time.Duration) {
	bell := !s.strike(faultBell)
	if from := s.agents[in.Agent]; !bell && from != nil {
		s.trouble(from, to)
	}
	s.after(d, func() {
		copied := in
		copied.Body = slices.Clone(in.Body)
		to.arrive(copied, bell)
	})
}

func (t *simTransport) Poll(out []transport.Incoming) []transport.Incoming {
	t.passes++
	landing := t.landing
	t.landing = nil
	for _, c := range landing {
		if c.second { // a pass moves it on; the next one takes it in
			c.second = false
			t.landing = append(t.landing, c)
			continue
		}
		c.land()
	}
	flushed := t.flushed
	t.flushed = nil
	for _, w := range flushed {
		w.notified()
		w.end(nil)
	}
	out = append(out, t.arrived...)
	t.arrived = t.arrived[:0]
	return out
}

// Fence implements Fencer.
func (f *simFencer) Fence(agent string) error {
	s := f.s
	s.counts.reach("fence")
	s.note("%s fences %s", f.node.record.Agent, agent)
	f.barred[agent] = true
	if from := s.agents[agent]; from != nil {
		for _, l := range slices.Clone(from.t.links) {
			if l.to != f.node || l.as != agent {
				continue
			}
			for _, w := range slices.Clone(l.writing) {
				w.cut()
			}
			s.after(s.some(300*time.Microsecond), func() {
				if s.reaches(from, f.node) {
					l.lose()
				}
			})
		}
		s.cutTails(func(l *simLink) bool { return l.as == agent }, f.node)
	}
	return nil
}

// Admit implements Fencer.
func (f *simFencer) Admit(agent string) {
	if f.barred[agent] {
		f.s.counts.reach("admitted")
		f.s.note("%s admits %s", f.node.record.Agent, agent)
	}
	delete(f.barred, agent)
}

// Forget implements Fencer: of an agent that is not known nothing lands.
func (f *simFencer) Forget(agent string) { f.barred[agent] = true }
