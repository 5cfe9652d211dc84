// Package e2e holds the tests that run the built binary in front of other people's programs: the openai Python client,
// SGLang's router and stock vLLM engines. It has no code of its own outside its tests.
package e2e
