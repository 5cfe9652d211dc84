// Package auth says who a caller is and what they may do: clients of the OpenAI routes, agents that publish
// metadata, administrators. It verifies and mints tokens, with keys of package keys, and API keys from a file. The gateway's command makes
// its verifiers; package router and the metadata routes ask them.
package auth
