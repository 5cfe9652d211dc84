package migration

// Result is what became of a move, or why there was none.
type Result uint8

const (
	Moved        Result = iota // the target has the KV
	DryRun                     // it would have been moved: migration.mode is dry_run
	NoTarget                   // no other engine can take it
	AlreadyThere               // the target had it
	Evicted                    // the source does not have it any more
	Left                       // the conversation has gone on elsewhere meanwhile
	Restarted                  // the source has restarted, and so has nothing
	Short                      // it is shorter than migration.min_tokens, or than one block
	Idle                       // it had no turn for longer than migration.max_idle
	NoHandOff                  // the source hands nothing off, or nothing that the target can read
	HybridCache                // the model has several kinds of caches, which are not moved
	Refused                    // an engine did not begin
	Failed                     // an engine failed, or the transfer did
	Late                       // it took longer than migration.timeout
	Stopped                    // the gateway stops
	Unneeded                   // the request that it was for is over
	Results                    // how many there are
)

func (r Result) String() string {
	return [...]string{
		"moved", "dry_run", "no_target", "already_there", "evicted", "left", "restarted", "short", "idle", "no_hand_off", "hybrid_cache", "refused", "failed", "late", "stopped", "unneeded",
	}[r]
}
