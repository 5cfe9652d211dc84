// Package router is the HTTP edge and the life of one request: it splits a request into a prefill and a decode
// leg, talks to the engines, and relays the answer. It chooses nothing (package policies) and moves no KV
// (the engines, or package kvplane inside them).
package router
