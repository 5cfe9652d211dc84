package main

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"pdrouter/auth/keys"
	"pdrouter/auth/rotate"
)

const rotateAbout = `Replaces the key that signs tokens, without a valid token being refused:

  1. A new key pair is made. Its private part waits in DIR/next.jwk, its public part is published: as DIR/<kid>.pub.jwk,
     and in the key set DIR/jwks.json.
  2. After --publish-ahead, by which time every verifier has read it, DIR/next.jwk becomes DIR/current.jwk in one step.
     Sign with DIR/current.jwk: it is always the current private key, and there is no other.
  3. The old public key stays published for --retire-after, so that tokens in flight stay valid. A later rotation
     removes it.

Every file is replaced whole. If the command is stopped, at any moment, the folder can be used as it is, and the next
call goes on where it stopped. An empty folder gets its first key at once. In a folder made by "pdrouter keys new" the
private key is first renamed to current.jwk.

Verifiers read DIR/jwks.json as a key set, from the file or from wherever you serve it. DIR itself has the private key:
keep it to those who sign.

When the folder may have leaked: --leaked makes a fresh key sign at once, and withdraws all others, the one in
DIR/next.jwk included. Valid tokens of those keys are refused from then on: mint new ones. Without any waiting
(--publish-ahead 0 --retire-after 0) it is the same.`

func rotateCommand() *cobra.Command {
	c := &cobra.Command{Use: "rotate", Short: "Replace the key that signs tokens, without a valid token being refused.", Long: rotateAbout, Args: cobra.NoArgs}
	f := c.Flags()
	var r rotate.Rotation
	f.StringVar(&r.Dir, "dir", "", "folder of the keys, made if need be")
	f.StringVar(&r.Algorithm, "algorithm", "", "of the new key: EdDSA, ES256 or RS256; default that of the current key, or EdDSA")
	f.DurationVar(&r.PublishAhead, "publish-ahead", 6*time.Minute, "how long the new key is published before it signs: longer than verifiers take to read the keys again (key sets 5m, key files 10s)")
	f.DurationVar(&r.RetireAfter, "retire-after", 24*time.Hour, "how long a replaced public key stays: at least the longest life of a token")
	f.BoolVar(&r.Leaked, "leaked", false, "others may have the keys of the folder: a fresh one signs at once, and all others are removed")
	f.StringVar(&r.JWKSFile, "jwks", "", "file for the key set; default jwks.json in the folder")
	required(c, "dir")
	c.RunE = func(c *cobra.Command, _ []string) error {
		return rotateKeys(c.Context(), r, c.OutOrStdout())
	}
	return c
}

func rotateKeys(ctx context.Context, r rotate.Rotation, out io.Writer) error {
	r.Waiting = func(next *keys.Key, d time.Duration) {
		fmt.Fprintf(out, "published %s; it signs in %v (if you stop this, another call goes on)\n", next.ID, d.Round(time.Second))
	}
	done, err := r.Rotate(ctx)
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "kid      %s\nprivate  %s\njwks     %s\n", done.Current.ID, done.Path, done.JWKSFile)
	if done.Previous != "" {
		fmt.Fprintf(out, "replaced %s\n", done.Previous)
	}
	for _, id := range done.Removed {
		fmt.Fprintf(out, "removed  %s\n", id)
	}
	return nil
}
