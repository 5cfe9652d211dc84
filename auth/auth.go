// Package auth says who a caller is and what they may do: clients of the OpenAI routes, agents that publish
// metadata, administrators. It verifies and mints tokens and keeps no state but the keys it was given.
package auth
