package agent

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"time"
)

// simFault is a kind of thing that goes wrong.
type simFault uint8

const (
	// Messages.
	faultLose simFault = iota
	faultDouble
	faultDelay
	faultLate // later than every deadline
	faultGarble
	faultMisdeliver
	faultBell // the doorbell is lost
	// Writes.
	faultPost
	faultBreak // ends in an error; a part has landed
	faultTail  // what had left lands after the failure was reported, or after its writer's death
	faultSlow
	faultStuck // in progress for very long
	faultNotify
	faultNextPoll // lands when the target polls, and not before
	faultSecondPass
	// Connections and machines.
	faultConnection
	faultPartition
	faultCrash
	faultCrashRank // one process of an engine
	faultSilent    // whose peers are not told
	faultUnproven  // whose supervisor says so late
	faultRestart
	faultZombie // the new generation starts while the old one runs on
	faultPause
	faultPauseRank
	faultClock
	// The directory.
	faultSlowLookup
	faultLookup
	faultStale
	faultFailover
	// Engines, the router and clients.
	faultQueue  // decode waits for long before it reserves
	faultLong   // a long prefill
	faultLag    // one rank is told much later than the others
	faultFewer  // prefill has computed fewer tokens than decode needs
	faultRefuse // the engine refuses a leg
	faultAbort  // the engine aborts a request of its own accord
	faultLeave
	faultCancelLost
	faultAgain  // a leg is dispatched twice
	faultWrong  // and to an engine that it is not for
	faultForget // the router names a generation that is over
	faultTicket // the legs come with different tickets
	faultTokens // the sides disagree about the tokens
	faultClose  // an engine ends in order
	faultUnused // its number is kept, so that older seeds stay what they were
	// Those from here on have a stream of their own, so that older seeds stay what they were.
	faultAges  // a message comes once more, minutes later
	faultBurst // many legs are queued at once while prefill is slow
	faultForge // somebody speaks in another's name
	// Those from here on befall what goes between a scheduler and its ranks.
	faultStep // a slow step: what is ordered or reported in it waits
	faultMiss // orders or a report are lost
	simFaults // how many there are
)

var simFaultNames = [...]string{
	"lose", "double", "delay", "late", "garble", "misdeliver", "bell",
	"post", "break", "tail", "slow", "stuck", "notify", "next-poll", "second-pass",
	"connection", "partition", "crash", "crash-rank", "silent", "unproven", "restart", "zombie", "pause", "pause-rank", "clock",
	"slow-lookup", "lookup", "stale", "failover",
	"queue", "long", "lag", "fewer", "refuse", "abort", "leave", "cancel-lost", "again", "wrong", "forget", "ticket", "tokens", "close", "unused",
	"ages", "burst", "forge",
	"step", "miss",
}

func (f simFault) String() string { return simFaultNames[f] }

// simOptions are a run's seed and what was taken from it by the shrinker.
type simOptions struct {
	seed    uint64
	without [simFaults]bool
	only    uint64        // if not 0: bit i allows the i-th request
	until   time.Duration // when the faults end
	plain   bool          // none of what worlds have had since: see widen
	direct  bool          // nothing is between a scheduler and its ranks, as in the worlds before there were steps
	tables  bool          // every table is small
}

// simRequests bounds how many requests a world has.
const simRequests = 10

func simSeed(seed uint64) simOptions { return simOptions{seed: seed, until: 14 * time.Second} }

// String is the form kept in testdata.
func (o simOptions) String() string {
	b := &strings.Builder{}
	fmt.Fprintf(b, "seed %d\nuntil %v\n", o.seed, o.until)
	if o.plain {
		b.WriteString("plain\n")
	}
	if o.direct {
		b.WriteString("direct\n")
	}
	if o.tables {
		b.WriteString("tables\n")
	}
	if o.only != 0 {
		fmt.Fprintf(b, "only %d\n", o.only)
	}
	var names []string
	for f, off := range o.without {
		if off {
			names = append(names, simFault(f).String())
		}
	}
	if len(names) > 0 {
		fmt.Fprintf(b, "without %s\n", strings.Join(names, " "))
	}
	return b.String()
}

func parseSimOptions(text string) (simOptions, error) {
	o := simSeed(0)
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		key, value, _ := strings.Cut(line, " ")
		var err error
		switch key {
		case "", "#":
		case "plain":
			o.plain = true
		case "direct":
			o.direct = true
		case "tables":
			o.tables = true
		case "seed":
			o.seed, err = strconv.ParseUint(value, 10, 64)
		case "only":
			o.only, err = strconv.ParseUint(value, 10, 64)
		case "until":
			o.until, err = time.ParseDuration(value)
		case "without":
			for _, name := range strings.Fields(value) {
				f := slices.Index(simFaultNames[:], name)
				if f < 0 {
					return o, fmt.Errorf("no fault is called %q", name)
				}
				o.without[f] = true
			}
		default:
			err = fmt.Errorf("unknown line %q", line)
		}
		if err != nil {
			return o, err
		}
	}
	return o, nil
}

// simThemes are faults that only together lead somewhere.
var simThemes = [...][]simFault{
	{faultCrash, faultTail, faultNextPoll, faultSecondPass, faultPauseRank, faultSlow},
	{faultLate, faultDouble, faultLong, faultLeave, faultCancelLost},
	{faultBreak, faultTail, faultNextPoll, faultSecondPass, faultPauseRank, faultSilent},
	{faultConnection, faultPartition, faultStuck, faultSlow, faultLeave},
	{faultZombie, faultCrash, faultRestart, faultStale, faultFailover, faultForget, faultSlowLookup},
	{faultCrashRank, faultCrash, faultUnproven, faultSilent, faultTail, faultSlow},
	{faultAgain, faultWrong, faultLag, faultQueue, faultPauseRank},
	{faultRefuse, faultCancelLost, faultQueue, faultAbort, faultFewer},
	{faultLose, faultNotify, faultDouble, faultDelay, faultGarble, faultMisdeliver, faultBell},
}

// swarm chooses which faults this seed has, and how often: many kinds a little, or few kinds a lot, and often those of
// a theme.
func (s *sim) swarm() {
	r := rand.New(rand.NewPCG(s.opts.seed, 0x5a4a))
	share := [...]int{0, 8, 20, 35, 60}[r.IntN(5)] // percent of the kinds
	for f := range faultAges {
		s.dice[f] = rand.New(rand.NewPCG(s.opts.seed, uint64(f)+1))
		w := [...]int{20, 60, 150, 400}[r.IntN(4)]
		if r.IntN(100) < share {
			s.weight[f] = w
		}
	}
	if r.IntN(2) == 0 {
		theme := simThemes[r.IntN(len(simThemes))]
		for _, f := range theme {
			s.weight[f] = max(s.weight[f], [...]int{300, 500, 700}[r.IntN(3)])
		}
		s.afterPolls = slices.Contains(theme, faultNextPoll)
	}
	s.widen()
	for f, off := range s.opts.without {
		if off {
			s.weight[f] = 0
		}
	}
}
