package embed

import "golang.org/x/sys/unix"

func newBell() (*bell, error) {
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		return nil, wrong(System, "embed: eventfd: %w", err)
	}
	return &bell{fd: fd, write: fd}, nil
}

func (b *bell) ring() {
	one := [8]byte{1} // little or big endian: not zero
	_, _ = unix.Write(b.write, one[:])
}

func (b *bell) quiet() {
	var count [8]byte
	_, _ = unix.Read(b.fd, count[:])
}

func (b *bell) shut() error { return unix.Close(b.fd) }
