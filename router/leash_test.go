package router

import (
	"context"
	"errors"
	"net"
	"testing"
)

func TestLeash(t *testing.T) {
	first, second := errors.New("first"), errors.New("second")
	near, far := net.Pipe()
	defer far.Close()
	c := &engineConn{nc: near}
	var l leash
	l.attach(c)
	if !l.detach() || l.Err() != nil || causeOf(&l) != nil {
		t.Fatal("it does not hold")
	}
	l.attach(c)
	asked := l.Done()
	l.cut(first)
	l.cut(second)
	<-asked
	<-l.Done()
	if _, err := near.Read(make([]byte, 1)); err == nil {
		t.Error("the connection was not interrupted")
	}
	if l.detach() || !errors.Is(causeOf(&l), first) || !errors.Is(l.Err(), context.Canceled) {
		t.Errorf("cause %v, error %v", causeOf(&l), l.Err())
	}
	other, _ := net.Pipe()
	l.attach(&engineConn{nc: other}) // after it was cut
	if _, err := other.Read(make([]byte, 1)); err == nil {
		t.Error("a connection that came later was not interrupted")
	}
}

func TestLeashes(t *testing.T) {
	stopped := errors.New("stopped")
	var s leashes
	var out, in, late leash
	s.add(&out)
	s.add(&in)
	out.remove()
	out.remove()
	s.cut(stopped)
	s.add(&late)
	if out.why() != nil || !errors.Is(in.why(), stopped) || !errors.Is(late.why(), stopped) {
		t.Errorf("got %v, %v, %v", out.why(), in.why(), late.why())
	}
	in.remove()
	late.remove()
	if s.head != nil {
		t.Error("some are left")
	}
}
