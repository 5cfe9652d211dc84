package router

// goneWatcher tells of clients that have left while their request is worked on. One goroutine serves all of them;
// it starts with the first connection watched. The zero value is not usable: newGoneWatcher.
//
// A client that closes only its sending half counts as gone.
