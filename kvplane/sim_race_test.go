//go:build race

package kvplane

const raceEnabled = true
