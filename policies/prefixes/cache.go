package prefixes

// cache is what the cache of a holder has room for, by how many tokens: its links from the one that was used last. Like the cache of an engine, it
// forgets what was not used for the longest, of a prompt the end first.
type cache struct {
	capacity, used int               // tokens
	nodes          []node            // from 1 on; 0 is the ring's place where the newest and the oldest meet
	at             map[uint32]uint32 // the node of a link
	unused         []uint32          // nodes
	clock          uint32            // counts what was noted
}

// node is a link that the holder has.
type node struct {
	link         uint32
	tokens       uint32
	stamp        uint32 // when it was noted last
	older, newer uint32
}

const (
	// nodeBytes is what a node takes, with its place in the map.
	nodeBytes = 40
	// mostNodes is how many nodes there are at most for each link that the index may have.
	mostNodes = 4
)

func newCache(capacity int) *cache {
	return &cache{capacity: capacity, nodes: make([]node, 1), at: map[uint32]uint32{}}
}

// len is how many links it has.
func (c *cache) len() int { return len(c.at) }

// use makes a link the newest. It reports whether it is new.
func (c *cache) use(link uint32, tokens int) (added bool) {
	at, ok := c.at[link]
	switch {
	case ok:
		c.unring(at)
		c.used -= int(c.nodes[at].tokens)
	case len(c.unused) > 0:
		at, c.unused = c.unused[len(c.unused)-1], c.unused[:len(c.unused)-1]
	default:
		at = uint32(len(c.nodes))
		c.nodes = append(c.nodes, node{})
	}
	c.at[link] = at
	c.used += tokens
	newest := c.nodes[0].older
	c.nodes[at] = node{link: link, tokens: uint32(tokens), stamp: c.clock, older: newest}
	c.nodes[newest].newer, c.nodes[0].older = at, at
	return !ok
}

// remove forgets a link. It reports whether it had it.
func (c *cache) remove(link uint32) bool {
	at, ok := c.at[link]
	if !ok {
		return false
	}
	c.unring(at)
	c.used -= int(c.nodes[at].tokens)
	delete(c.at, link)
	c.unused = append(c.unused, at)
	return true
}

func (c *cache) unring(at uint32) {
	n := c.nodes[at]
	c.nodes[n.older].newer, c.nodes[n.newer].older = n.newer, n.older
}

// oldest is the link that was not used for the longest. There must be one.
func (c *cache) oldest() uint32 { return c.nodes[c.nodes[0].newer].link }

// stampOf is when a link was noted last; 0 if it is not there.
func (c *cache) stampOf(link uint32) uint32 {
	if at, ok := c.at[link]; ok {
		return c.nodes[at].stamp
	}
	return 0
}
