package exchange

import (
	"testing"

	"pdrouter/policies"
	"pdrouter/router/connector"
	"pdrouter/router/fleet"
	"pdrouter/router/openai"
)

// TestOnwardNeedsDecodeAlone: no engine is to go on with a stream of a model whose decode engines serve nothing alone.
func TestOnwardNeedsDecodeAlone(t *testing.T) {
	p, err := policies.New(policies.Config{Default: policies.Choosing{Policy: "roles", AfterFailure: policies.Continue}})
	if err != nil {
		t.Fatal(err)
	}
	for _, row := range []struct {
		conn connector.Connector
		able bool
	}{{connector.Named(connector.NameNone), true}, {connector.Named(connector.NameSGLang), false}} {
		b, herr := openai.ParseBody(openai.ShapeCompletions, []byte(`{"model":"m","prompt":"a","stream":true,"temperature":0,"max_tokens":9}`), openai.Limits{})
		if herr != nil {
			t.Fatal(herr)
		}
		x := &Exchange{}
		x.s, x.m, x.b = &Snapshot{Planner: p}, &fleet.Model{Connector: row.conn}, b
		o := x.newContinuation()
		if (o != nil) != row.able || x.uncontinued == row.able {
			t.Errorf("%T: able %v, uncontinued %v", row.conn, o != nil, x.uncontinued)
		}
	}
}
