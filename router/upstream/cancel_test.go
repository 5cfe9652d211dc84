package upstream

import (
	"context"
	"errors"
	"net"
	"testing"
)

func TestCanceler(t *testing.T) {
	first, second := errors.New("first"), errors.New("second")
	near, far := net.Pipe()
	defer far.Close()
	c := &conn{nc: near}
	var l Canceler
	l.attach(c)
	if !l.detach() || l.Err() != nil || causeOf(&l) != nil {
		t.Fatal("it does not hold")
	}
	l.attach(c)
	asked := l.Done()
	l.Cancel(first)
	l.Cancel(second)
	<-asked
	<-l.Done()
	if _, err := near.Read(make([]byte, 1)); err == nil {
		t.Error("the connection was not interrupted")
	}
	if l.detach() || !errors.Is(causeOf(&l), first) || !errors.Is(l.Err(), context.Canceled) {
		t.Errorf("cause %v, error %v", causeOf(&l), l.Err())
	}
	other, _ := net.Pipe()
	l.attach(&conn{nc: other}) // after it was canceled
	if _, err := other.Read(make([]byte, 1)); err == nil {
		t.Error("a connection that came later was not interrupted")
	}
}

func TestCancelSet(t *testing.T) {
	stopped := errors.New("stopped")
	var s CancelSet
	var out, in, late Canceler
	s.Add(&out)
	s.Add(&in)
	out.Remove()
	out.Remove()
	s.Cancel(stopped)
	s.Add(&late)
	if out.Cause() != nil || !errors.Is(in.Cause(), stopped) || !errors.Is(late.Cause(), stopped) {
		t.Errorf("got %v, %v, %v", out.Cause(), in.Cause(), late.Cause())
	}
	in.Remove()
	late.Remove()
	if s.head != nil {
		t.Error("some are left")
	}
}
