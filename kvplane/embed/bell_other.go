//go:build !linux

package embed

import (
	"errors"

	"golang.org/x/sys/unix"
)

func newBell() (*bell, error) {
	var p [2]int
	if err := unix.Pipe(p[:]); err != nil {
		return nil, wrong(System, "embed: pipe: %w", err)
	}
	for _, fd := range p {
		unix.CloseOnExec(fd)
	}
	b := &bell{fd: p[0], write: p[1]}
	if err := errors.Join(unix.SetNonblock(p[0], true), unix.SetNonblock(p[1], true)); err != nil {
		return nil, wrong(System, "embed: pipe: %w", errors.Join(err, b.shut()))
	}
	return b, nil
}

func (b *bell) ring() { _, _ = unix.Write(b.write, []byte{1}) }

func (b *bell) quiet() {
	var one [1]byte
	_, _ = unix.Read(b.fd, one[:])
}

func (b *bell) shut() error { return errors.Join(unix.Close(b.fd), unix.Close(b.write)) }
