package leg

import (
	"errors"
	"fmt"
)

// The causes with which a leg is ended.
var (
	ErrEnded        = errors.New("nobody waits for this leg")
	ErrLate         = errors.New("the leg's time is over")
	ErrTransferLate = errors.New("no token within the transfer's time")
	ErrHurried      = errors.New("nobody waits for its answer, and it had a while to come to work") // so that nothing is known of a transfer
	ErrAtWork       = fmt.Errorf("%w, and its engine is at work with all that it has", ErrHurried)
)
