package tcp

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"syscall"

	"github.com/vmihailenco/msgpack/v5"

	"pdrouter/kvplane/internal/procid"
	"pdrouter/kvplane/memory"
	"pdrouter/kvplane/memory/view"
	"pdrouter/kvplane/transfer"
	"pdrouter/metadata"
)

// The memory path. A writer on the same host offers its memory: it says which process it is, what it has registered,
// and where in its memory lies the word, which only the two ends of this handshake know. The receiver copies what a
// pull names straight into its own registered memory, and the word after it, in one call to the kernel. If the word is
// there, the bytes are those of the peer, who had promised them at that time: no other program has the word, and the
// writer wipes it before it reports a write lost, after which it may put other bytes there. That the process is the one
// of the peer's record, and lives, is looked at before each copy, so that no other one's memory is copied first. A receiver that is not allowed to read, by whatever rule of the kernel, refuses the offer.
//
// As every copy is the receiver's, a fence is a fence here as on the socket, and who is dead lands nothing.
type memoryOffer struct {
	Process metadata.Process `msgpack:"process"`
	Word    uint64           `msgpack:"word"`   // address of the wordBytes
	Memory  []byte           `msgpack:"memory"` // packed spans
}

const wordBytes = sha256.Size

// The values of TCPConfig.Path.
const (
	PathSocket = "socket"
	PathMemory = "memory"
)

// errNoMemoryPath is why a peer is lost that was to be written to through memory only.
var errNoMemoryPath = errors.New("no way through memory")

func (o memoryOffer) encode() ([]byte, error) { return msgpack.Marshal(o) }

// parseOffer decodes an offer and checks that its process is one which this one could read.
func parseOffer(raw []byte, self metadata.Process) (memoryOffer, error) {
	var o memoryOffer
	if err := msgpack.Unmarshal(raw, &o); err != nil {
		return memoryOffer{}, fmt.Errorf("%w: offer: %w", errFrame, err)
	}
	if !procid.CanProbe(self, o.Process) {
		return memoryOffer{}, errors.New("the processes do not share a kernel and namespaces")
	}
	return o, nil
}

// source is a peer's memory as its receiver sees it.
type source struct {
	pid    int
	held   *procid.Held
	memory memory.Set
	wordAt uint64
	word   []byte
	found  []byte // the word as it was read last
	calls  iovecs
}

// newSource accepts an offer after having read the word.
func newSource(o memoryOffer, word []byte) (*source, error) {
	memory, err := unpackSpans(o.Memory)
	if err != nil {
		return nil, fmt.Errorf("%w: offer: %w", errFrame, err)
	}
	held, err := procid.Hold(o.Process)
	if err != nil {
		return nil, fmt.Errorf("copy from process %d: %w", o.Process.PID, err)
	}
	s := &source{pid: o.Process.PID, held: held, memory: memory, wordAt: o.Word, word: word, found: make([]byte, wordBytes)}
	if err := s.copy(nil, nil); err != nil {
		s.close()
		return nil, err
	}
	return s, nil
}

// close lets go of the process. A nil source holds none.
func (s *source) close() {
	if s != nil {
		s.held.Close()
	}
}

// copy fills into from what the ranges name in the peer's memory. An error says that not every byte there is to be
// trusted.
func (s *source) copy(into [][]byte, from []transfer.Range) error {
	clear(s.found)
	if err := s.held.Alive(); err != nil {
		return fmt.Errorf("copy from process %d: %w", s.pid, err)
	}
	err := s.calls.read(s.pid, into, from, s.found, s.wordAt)
	if err != nil && !errors.Is(err, syscall.EFAULT) { // where nothing lies is not told from where something else does
		return fmt.Errorf("copy from process %d: %w", s.pid, err)
	}
	if err != nil || !bytes.Equal(s.found, s.word) {
		return fmt.Errorf("copy from process %d: the writer has taken back its offer, or is another process", s.pid)
	}
	return nil
}

// pledge is the word in the writer's memory.
type pledge struct {
	page []byte
	free func() error
}

func newPledge(word []byte) (*pledge, error) {
	page, free, err := memory.Allocate(len(word))
	if err != nil {
		return nil, err
	}
	copy(page, word)
	return &pledge{page, free}, nil
}

func (p *pledge) address() uint64 { return view.Address(p.page) }

// revoke wipes the word: what the receiver copies from now on is void. A nil pledge has none.
func (p *pledge) revoke() error {
	if p == nil {
		return nil
	}
	clear(p.page)
	return p.free()
}
