package forecast

// Leg is a request's part at one engine. What is exported is set before Begin. Its methods are the engine's; the zero value is of a leg that has not
// begun. Counted, FirstToken, Said, Whole and End are for one goroutine at a time.
type Leg struct {
	Prompt   int     // tokens of the prompt
	Uncached int     // of these, tokens that the engine has to compute; 0: it receives the KV of all of them
	Answers  bool    // the leg brings the answer, and not the KV for another engine
	Silent   bool    // FirstToken is not called: the prompt is thought to be computed when it should be
	Late     float64 // seconds; a token that comes so long after another is late

	// These are guarded by the engine's mu, as others' calls settle a silent leg.
	tokens int     // that it holds
	terms  vector  // of the seconds that the prompt takes
	work   float64 // seconds in which it is thought to be computed
	at     float64 // when the leg began
	read   float64 // when the prompt is thought to be read
	ahead  float64 // seconds of prompts before it
	given  float64 // the engine's, with this prompt
	state  legState
	alone  bool // no others had prompts there that waited when it began
	noted  bool // the model knows that the prompt is computed
	passed bool // a later prompt was computed first: when the engine began with this one cannot be known

	// These are for the leg's own goroutine.
	last    float64 // when a token came
	said    untold
	started bool // the first token has come
}

type legState uint8

const (
	notBegun legState = iota
	computing
	streaming
	ended
)
