package nonblock

import (
	"bytes"
	"syscall"
	"testing"
)

// move is Read or Write.
type move func(fd uintptr, p []byte) (int, syscall.Errno)

// Both ways of each are tried, whichever of them this build uses.
func ways() map[string][2]move {
	return map[string][2]move{
		"used": {Read, Write},
		"raw": {
			func(fd uintptr, p []byte) (int, syscall.Errno) { return raw(syscall.SYS_READ, fd, p) },
			func(fd uintptr, p []byte) (int, syscall.Errno) { return raw(syscall.SYS_WRITE, fd, p) },
		},
		"told": {
			func(fd uintptr, p []byte) (int, syscall.Errno) { return told(syscall.Read, fd, p) },
			func(fd uintptr, p []byte) (int, syscall.Errno) { return told(syscall.Write, fd, p) },
		},
	}
}

func pair(t *testing.T) (a, b int) {
	t.Helper()
	fds, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_NONBLOCK|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	if err := syscall.SetsockoptInt(fds[1], syscall.SOL_SOCKET, syscall.SO_SNDBUF, 64<<10); err != nil { // less than is written
		t.Fatal(err)
	}
	t.Cleanup(func() { syscall.Close(fds[0]) })
	return fds[0], fds[1] // which the test closes
}

// What is written is read to the byte; each call says what there is no more of: bytes, room, a peer.
func TestReadAndWrite(t *testing.T) {
	for name, way := range ways() {
		t.Run(name, func(t *testing.T) {
			read, write := way[0], way[1]
			a, b := pair(t)
			in := make([]byte, 1<<20)
			check := func(what string, n int, errno syscall.Errno, wantN int, want syscall.Errno) {
				t.Helper()
				if n != wantN || errno != want {
					t.Fatalf("%s: %d, %v; want %d, %v", what, n, errno, wantN, want)
				}
			}
			n, errno := read(uintptr(a), in)
			check("nothing is here", n, errno, 0, syscall.EAGAIN)
			n, errno = read(uintptr(a), nil)
			check("into nothing", n, errno, 0, 0)
			n, errno = write(uintptr(b), nil)
			check("nothing", n, errno, 0, 0)

			out := bytes.Repeat([]byte("0123456789abcde\n"), 1<<16)
			sent := 0
			for errno = 0; errno == 0; sent += n {
				n, errno = write(uintptr(b), out[sent:])
			}
			check("no room", n, errno, 0, syscall.EAGAIN)
			if syscall.Close(b) != nil {
				t.Fatal("not closed")
			}
			got := 0
			for n, errno = read(uintptr(a), in); n > 0 && errno == 0; n, errno = read(uintptr(a), in[got:]) {
				got += n
			}
			check("the end", n, errno, 0, 0)
			if sent == 0 || !bytes.Equal(in[:got], out[:sent]) {
				t.Errorf("%d bytes of %d were read, or others", got, sent)
			}
			n, errno = write(uintptr(a), out)
			check("nobody reads", n, errno, 0, syscall.EPIPE)
			n, errno = read(^uintptr(0), in)
			check("no descriptor", n, errno, 0, syscall.EBADF)
		})
	}
}

func TestAllocations(t *testing.T) {
	for name, way := range ways() {
		a, b := pair(t)
		one := make([]byte, 1)
		if n := testing.AllocsPerRun(100, func() {
			_, _ = way[1](uintptr(b), one)
			_, _ = way[0](uintptr(a), one)
			_, _ = way[0](uintptr(a), one)
		}); n > 0 {
			t.Errorf("%s: %v allocations", name, n)
		}
		syscall.Close(b)
	}
}
