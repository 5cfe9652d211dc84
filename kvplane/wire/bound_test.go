package wire

import (
	"math"
	"testing"

	"pdrouter/kvplane"
	"pdrouter/kvplane/transport"
)

// TestWriteRequestFits: a write request with as many scattered blocks as it may have fits into a message.
func TestWriteRequestFits(t *testing.T) {
	m := Message{Kind: KindWriteRequest, Seq: 1, ID: kvplane.NewTransferID(), Groups: []kvplane.BlockList{{}}}
	for i := range MaxBlocks {
		b := int32(i)
		if i%2 == 1 {
			b = math.MaxInt32 - b
		}
		m.Groups[0].Blocks = append(m.Groups[0].Blocks, b)
	}
	if got := len(Append(nil, &m)); got > transport.MaxMessage-1024 { // header and MAC
		t.Errorf("%d scattered blocks take %d bytes; a message has at most %d", MaxBlocks, got, transport.MaxMessage)
	}
}
