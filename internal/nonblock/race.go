//go:build race

package nonblock

const raced = true // the race detector looks on
