package router

import (
	"errors"
	"fmt"
)

// The causes with which a leg is ended.
var (
	errEnded        = errors.New("nobody waits for this leg")
	errLegLate      = errors.New("the leg's time is over")
	errTransferLate = errors.New("no token within the transfer's time")
	errHurried      = errors.New("nobody waits for its answer, and it had a while to come to work") // so that nothing is known of a transfer
	errAtWork       = fmt.Errorf("%w, and its engine is at work with all that it has", errHurried)
)
