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
	unopened  unopened     // until there is an agent
	agent     *agent.Agent // nil until it is open
	seq       uint64       // of the last report that said something
	publisher *client.Publisher
	news      bool // there is something to collect
	results   results
	watching  bool // the quarantine is looked at
	rebuilds  uint64
}

type rankState uint8

const (
	rankNew rankState = iota
	rankPublishing
	rankClosed
)

// OpenRank makes a rank without memory. It opens the transport's library and nothing else.
func OpenRank(cfg Config) (_ *Rank, err error) {
	r := &Rank{cfg: cfg, unopened: unopened{rank: cfg.Rank.rank()}}
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

// Publish opens the agent and publishes its record, behind the call.
func (r *Rank) Publish() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case r.state != rankNew:
		return wrong(State, "embed: the rank is published already, or closed")
	case len(r.regions) == 0:
		return wrong(State, "embed: no memory is registered")
	}
	r.state = rankPublishing
	r.tasks.Go(func() {
		if err := r.begin(); err != nil {
			r.mu.Lock()
			defer r.mu.Unlock()
			r.unopened.fail(err.Error())
			r.tellLocked(broken(err))
		}
	})
	return nil
}

// begin opens the agent, hands it what was ordered meanwhile, and starts what goes on behind it.
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
	for _, o := range r.unopened.orders {
		a.Do(o)
	}
	r.unopened.orders = nil
	r.mu.Unlock()
	r.following.Go(func() { peers.Follow(r.published, r.log) })
	r.following.Go(func() { r.keys.run(r.published, r.log) })
	r.following.Go(func() {
		if err := publisher.Run(r.published); !errors.Is(err, context.Canceled) {
			r.tell(broken(err))
		}
	})
	select {
	case <-publisher.Ready():
		r.notified() // the scheduler learns the generation of the first report
		r.tell(Result{Kind: Published, Bytes: c.Generation})
	case <-r.ctx.Done():
	}
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

func (r *Rank) ringLocked() { r.bell.set(r.newsLocked() || len(r.results) > 0) }

// newsLocked says whether there is something to collect.
func (r *Rank) newsLocked() bool {
	return r.news || r.unopened.fresh || len(r.unopened.reports) > 0
}

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
	switch {
	case r.state != rankPublishing:
		return wrong(State, "embed: orders for a rank that is not published")
	case r.agent != nil:
		r.agent.Do(o)
	case !r.unopened.take(o):
		return wrong(Full, "embed: %d steps of orders before the rank's agent is open", maxEarly)
	}
	r.ringLocked()
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
	a, some, own := r.agent, r.newsLocked(), r.unopened.reports
	r.news, r.unopened.fresh, r.unopened.reports = false, false, nil
	r.mu.Unlock()
	if !some {
		return nil
	}
	s := said{report: sched.RankReport{Engine: metadata.Incarnation{Engine: r.cfg.Engine, Generation: r.cfg.Generation}, Rank: r.cfg.Rank.rank()}}
	if a != nil {
		s.report = a.Collect()
	}
	clears, failed := r.clean(s.report.Reports)
	r.mu.Lock()
	defer r.mu.Unlock()
	s.report.Reports = append(own, s.report.Reports...)
	if len(s.report.Reports) > 0 {
		r.seq++
	}
	s.broken, s.report.Seq = r.unopened.never != "", r.seq // not the agent's, which has not counted what was said before there was one
	r.results = append(r.results, clears...)
	if failed && !r.watching && r.state == rankPublishing {
		r.watching = true
		r.tasks.Go(r.watch)
	}
	return s.marshal()
}

// clean clears what is old in the last blocks of transfers that are ready, or says what is to be cleared on a device. It
// reports whether any has failed.
func (r *Rank) clean(reports []kvplane.Report) (clears []Result, failed bool) {
	for i := range reports {
		x := &reports[i]
		failed = failed || x.Kind == kvplane.Negative
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
	return clears, failed
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
		Rebuilds   uint64       `json:"rebuilds"`
		Agent      agent.Status `json:"agent"`
	}{
		Kind: KindRank, Engine: r.cfg.Engine, Generation: r.cfg.Generation, Rank: r.cfg.Rank.rank().String(),
		Transport: r.transport.Name(), Open: a != nil, Rebuilds: r.rebuilds,
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
