package router

import (
	"context"
	"errors"
	"testing"

	"pdrouter/router/fleet"
	"pdrouter/router/leg"
)

func TestLegFollowsContext(t *testing.T) {
	why := errors.New("why")
	ctx, cancel := context.WithCancelCause(t.Context())
	var l, after leg.Leg
	l.Open(ctx, &fleet.Engine{})
	cancel(why)
	<-l.Done()
	after.Open(ctx, &fleet.Engine{})
	if !errors.Is(l.Cause(), why) || !errors.Is(after.Cause(), why) {
		t.Errorf("got %v, %v", l.Cause(), after.Cause())
	}
}
