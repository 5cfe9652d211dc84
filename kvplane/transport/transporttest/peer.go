package transporttest

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"syscall"
	"time"

	"pdrouter/kvplane/transport"
)

// Serve makes this process the peer of a test in another one: it does what that test orders (see order), and says what it takes in,
// until the orders end.
func (n *Node) Serve() {
	out := json.NewEncoder(os.NewFile(3, "reports"))
	say := func(r Report) {
		if err := out.Encode(r); err != nil {
			n.T.Fatal("the test is gone:", err)
		}
	}
	orders := make(chan Order)
	go func() {
		defer close(orders)
		in := json.NewDecoder(os.Stdin)
		for {
			var o Order
			if in.Decode(&o) != nil {
				return
			}
			orders <- o
		}
	}()
	say(Report{Kind: "ready", Record: n.Record, Base: n.Base})
	held, flood := false, Order{}
	for {
		select {
		case o, open := <-orders:
			if !open {
				return
			}
			held, flood = n.obey(o, say, held, flood)
		default:
		}
		if held {
			time.Sleep(time.Millisecond)
			continue
		}
		n.Poll()
		for _, in := range n.Got {
			r := Report{Body: in.Body, ID: in.ID}
			if in.Err != nil {
				r.Err = in.Err.Error()
			}
			switch in.Kind {
			case transport.MessageReceived:
				r.Kind = "message"
			case transport.WriteEnded:
				r.Kind = "ended"
			case transport.PeerLost:
				r.Kind = "lost"
			}
			if in.Kind == transport.WriteEnded && flood.Do != "" {
				if err := n.Transport.Write(flood.Record.Agent, 0, flood.Ranges, nil); err != nil {
					flood = Order{}
				}
				continue
			}
			say(r)
		}
		if len(n.Got) == 0 {
			time.Sleep(Idle)
		}
		n.Got = n.Got[:0]
	}
}

// obey does one order in the peer process.
func (n *Node) obey(o Order, say func(Report), held bool, flood Order) (bool, Order) {
	r := Report{Kind: "done"}
	var err error
	switch o.Do {
	case "connect":
		err = n.Transport.Connect(o.Record)
	case "fill":
		Scribble(n.Mem, o.Seed)
		n.Store()
	case "send":
		err = n.Transport.Send(o.Record.Agent, o.Body)
	case "write":
		err = n.Transport.Write(o.Record.Agent, o.ID, o.Ranges, o.Body)
	case "flood": // write again and again, until killed
		flood = o
		for range 4 {
			err = errors.Join(err, n.Transport.Write(o.Record.Agent, 0, o.Ranges, nil))
		}
	case "hold": // stop polling
		held = true
	case "write and hold": // not one poll after the post
		held = true
		err = n.Transport.Write(o.Record.Agent, o.ID, o.Ranges, o.Body)
	case "idle": // as an owner with nothing outstanding: asleep until Wake
		before := ProcessorTime(n.T)
		for end := time.After(3 * time.Second); end != nil; {
			select {
			case <-n.Transport.Wake():
				n.Poll()
			case <-end:
				end = nil
			}
		}
		r.CPU = ProcessorTime(n.T) - before
	case "poll":
		held = false
	case "stats":
		r.Stats, err = json.Marshal(n.Stats())
	case "digest":
		n.Load()
		r.Digest = Digest(n.Mem)
	default:
		err = fmt.Errorf("no such order: %s", o.Do)
	}
	if err != nil {
		r.Err = err.Error()
	}
	say(r)
	return held, flood
}

// AsNobody makes a process one of another user. Its binary may lie where that user has no way.
func AsNobody(cmd *exec.Cmd) func(int) error {
	cmd.Path = "/proc/self/exe"
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	return nil
}
