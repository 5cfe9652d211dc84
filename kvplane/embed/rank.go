package embed

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	"sync"
	"time"

	"pdrouter/kvplane"
	"pdrouter/kvplane/agent"
	"pdrouter/kvplane/memory/view"
	"pdrouter/kvplane/sched"
	"pdrouter/kvplane/transport/byname"
	"pdrouter/metadata"
	"pdrouter/metadata/client"
)

// Rank is one rank of an engine: an agent over memory of this process, published at the gateway.
type Rank struct {
	cfg       Config
	log       *slog.Logger
	endLog    func() error
	bell      *bell
	transport *byname.Transports
	wire      *http.Transport // to the gateway
	client    *client.Client
	keys      *keyFiles
	ctx       context.Context // ends with Close
	cancel    context.CancelFunc
	tasks     sync.WaitGroup
	withdraw  context.CancelFunc // ends publishing, after the agent has ended
	published context.Context
	following sync.WaitGroup // what withdraw ends

	collecting sync.Mutex // serialises Collect
	said       []byte     // collected, and found no room

	mu        sync.Mutex
	state     rankState
	regions   []metadata.Region
	agent     *agent.Agent // nil until it is open
	publisher *client.Publisher
	news      bool // there is something to collect
	results   results
}

type rankState uint8

const (
	rankNew rankState = iota
	rankPublishing
	rankClosed
)

// OpenRank makes a rank without memory. It opens the transport's library and nothing else.
func OpenRank(cfg Config) (_ *Rank, err error) {
	r := &Rank{cfg: cfg}
	if r.log, r.endLog, err = cfg.logger(); err != nil {
		return nil, err
	}
	r.ctx, r.cancel = context.WithCancel(context.Background())
	r.published, r.withdraw = context.WithCancel(context.Background())
	defer func() {
		if err != nil {
			err = errors.Join(err, r.Close())
		}
	}()
	if r.bell, err = newBell(); err != nil {
		return nil, err
	}
	if r.transport, err = byname.Open(cfg.Transport, cfg.Cache.Memory == "vram", r.log); err != nil {
		return nil, wrong(System, "embed: %w", err)
	}
	r.wire = &http.Transport{MaxIdleConnsPerHost: 4, IdleConnTimeout: 90 * time.Second}
	r.client, r.keys, err = newClient(cfg.Gateway, r.wire)
	return r, err
}

// FD returns what is readable while Poll or Collect has something.
func (r *Rank) FD() int { return r.bell.fd }

// Register adds memory, before Publish.
func (r *Rank) Register(regions []metadata.Region) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.state != rankNew {
		return wrong(State, "embed: memory is registered before the rank is published")
	}
	all := append(r.regions[:len(r.regions):len(r.regions)], regions...)
	if len(regions) == 0 {
		return wrong(Argument, "embed: no regions")
	}
	if err := r.cfg.Cache.layout(all).Validate(); err != nil {
		return wrong(Argument, "embed: %w", err)
	}
	if r.cfg.Cache.Memory == "dram" {
		for i := range regions {
			if err := readable(&regions[i]); err != nil {
				return err
			}
		}
	}
	r.regions = all
	return nil
}

// Publish opens the agent, and has its record published in the background. Orders are taken when it has returned nil. A rank whose agent
// cannot be opened is of no use: close it.
func (r *Rank) Publish() error {
	r.mu.Lock()
	switch {
	case r.state != rankNew:
		r.mu.Unlock()
		return wrong(State, "embed: the rank is published already, or closed")
	case len(r.regions) == 0:
		r.mu.Unlock()
		return wrong(State, "embed: no memory is registered")
	}
	r.state = rankPublishing
	r.tasks.Add(1)
	r.mu.Unlock()
	defer r.tasks.Done()
	if err := r.begin(); err != nil {
		return wrong(System, "embed: the rank's agent: %w", err)
	}
	return nil
}

// begin opens the agent and starts what runs beside it.
func (r *Rank) begin() error {
	t := r.transport.New()
	c := r.cfg
	self := metadata.Record{
		Version: metadata.RecordVersion, Incarnation: metadata.Incarnation{Engine: c.Engine, Generation: c.Generation}, Role: c.Role,
		Rank: c.Rank.rank(), Size: metadata.Rank{DP: 1, PP: c.Size.PP, TP: c.Size.TP},
		Connector: "kvplane", Compatibility: c.Compatibility, HTTP: c.HTTP, Control: c.Control.URL, Layout: c.Cache.layout(r.regions),
	}
	self.EngineID = self.ID()
	peers := agent.PeerDirectory{Records: r.client.Directory(), Own: c.Engine}
	a, err := agent.Open(agent.Config{
		Self: self, Memory: memoryOf(c.Cache.Memory, r.regions), Transport: t, Directory: peers,
		Notify: r.notified, Times: c.Times.plane(), SerialStarts: c.SerialStarts, Log: r.log.With("rank", self.Rank.String()),
	})
	if err != nil {
		return errors.Join(err, t.Close())
	}
	publisher, err := client.NewPublisher(r.client, client.PublisherConfig{TTL: c.Gateway.TTL}, r.log, a.Record())
	if err != nil {
		return errors.Join(err, a.Close())
	}
	r.mu.Lock()
	r.agent, r.publisher = a, publisher
	r.mu.Unlock()
	r.following.Go(func() { peers.Follow(r.published, r.log) })
	r.following.Go(func() { r.keys.run(r.published, r.log) })
	r.following.Go(func() {
		if err := publisher.Run(r.published); !errors.Is(err, context.Canceled) {
			r.tell(broken(err))
		}
	})
	r.following.Go(func() {
		select {
		case <-publisher.Ready():
			r.notified() // the scheduler learns the generation of the first report
			r.tell(Result{Kind: Published, Bytes: c.Generation})
		case <-r.published.Done():
		}
	})
	return nil
}

// notified has Collect report. It is called on the agent's goroutine too.
func (r *Rank) notified() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.news = true
	r.ringLocked()
}

// tell adds to what is polled.
func (r *Rank) tell(x Result) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.tellLocked(x)
}

func (r *Rank) tellLocked(x Result) {
	r.results = append(r.results, x)
	r.ringLocked()
}

func (r *Rank) ringLocked() { r.bell.set(r.news || len(r.results) > 0) }

// Do carries out the orders of one step.
func (r *Rank) Do(orders []byte) error {
	if len(orders) == 0 {
		return nil
	}
	o, err := sched.ParseOrders(orders)
	if err != nil {
		return wrong(Argument, "embed: %w", err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.state != rankPublishing || r.agent == nil {
		return wrong(State, "embed: orders for a rank that is not published")
	}
	r.agent.Do(o)
	return nil
}

// Collect copies what the rank has to say into buf; nothing is no bytes. Nothing is said twice.
func (r *Rank) Collect(buf []byte, need *int) error {
	r.collecting.Lock()
	defer r.collecting.Unlock()
	if r.said == nil {
		r.said = r.collect()
	}
	if err := Take(r.said, buf, need); err != nil {
		return err
	}
	r.said = nil
	r.mu.Lock()
	defer r.mu.Unlock()
	r.ringLocked()
	return nil
}

// collect returns nil if there is nothing to say.
func (r *Rank) collect() []byte {
	r.mu.Lock()
	a, news := r.agent, r.news
	r.news = false
	r.mu.Unlock()
	if !news { // so there may be no agent
		return nil
	}
	report := a.Collect()
	clears := r.clean(report.Reports)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.results = append(r.results, clears...)
	return report.Marshal()
}

// clean clears what is old in the last blocks of transfers that are ready, or says what is to be cleared on a device.
func (r *Rank) clean(reports []kvplane.Report) (clears []Result) {
	for i := range reports {
		x := &reports[i]
		switch {
		case len(x.Rest) == 0:
		case r.cfg.Cache.Memory == "vram":
			clears = append(clears, Result{Kind: Clear, ID: x.ID, Rank: &x.Rank, Ranges: x.Rest})
		default:
			for _, old := range x.Rest {
				clear(view.Bytes(old.Local, old.Length))
			}
		}
		x.Rest = nil // of this rank's memory: nobody else has use for it
	}
	return clears
}

// Poll copies results into buf. *used is their bytes, or what the first one needs.
func (r *Rank) Poll(buf []byte, used *int) (n int, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	n, *used, err = r.results.poll(buf)
	r.ringLocked()
	return n, err
}

// Gone says that the process of a peer's run is proven dead.
func (r *Rank) Gone(inc metadata.Incarnation) error {
	if err := metadata.ValidName(inc.Engine); err != nil {
		return wrong(Argument, "embed: %w", err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.agent != nil {
		r.agent.Gone(inc)
	}
	return nil
}

// Status returns JSON for people and metrics.
func (r *Rank) Status() ([]byte, error) {
	r.mu.Lock()
	a := r.agent
	s := struct {
		Kind       string       `json:"kind"`
		Engine     string       `json:"engine"`
		Generation uint64       `json:"generation"`
		Rank       string       `json:"rank"`
		Transport  string       `json:"transport"`
		Open       bool         `json:"open"` // there is an agent
		Agent      agent.Status `json:"agent"`
	}{
		Kind: KindRank, Engine: r.cfg.Engine, Generation: r.cfg.Generation, Rank: r.cfg.Rank.rank().String(),
		Transport: r.transport.Name(), Open: a != nil,
	}
	r.mu.Unlock()
	if a != nil {
		s.Agent = a.Status()
	}
	return json.Marshal(s)
}

// Close ends the agent, then withdraws the record, and returns when no goroutine of the rank is left. Safe to call twice.
func (r *Rank) Close() error {
	r.mu.Lock()
	over := r.state == rankClosed
	r.state = rankClosed
	r.mu.Unlock()
	if over {
		return nil
	}
	r.cancel()
	r.tasks.Wait() // what opens the agent, too
	r.mu.Lock()
	a := r.agent
	r.mu.Unlock()
	var errs []error
	if a != nil {
		errs = append(errs, a.Close())
	}
	r.withdraw()
	r.following.Wait()
	if r.wire != nil {
		r.wire.CloseIdleConnections()
	}
	if r.transport != nil {
		errs = append(errs, r.transport.Close())
	}
	if r.bell != nil {
		errs = append(errs, r.bell.close())
	}
	return errors.Join(append(errs, r.endLog())...)
}
