package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"pdrouter/auth"
	"pdrouter/auth/keys"
	"pdrouter/auth/rotate"
	"pdrouter/internal/kubesecrets"
)

// splitList cuts a comma-separated flag; the empty string is the empty list.
func splitList(s string) []string {
	if s == "" {
		return nil
	}
	parts := strings.Split(s, ",")
	for i := range parts {
		parts[i] = strings.TrimSpace(parts[i])
	}
	return parts
}

// emptyLists refuses flags that are given and empty, as a variable that is not set makes them: without the flag the list
// means everything.
func emptyLists(c *cobra.Command, names ...string) error {
	var errs []error
	for _, name := range names {
		if f := c.Flag(name); f.Changed && f.Value.String() == "" {
			errs = append(errs, fmt.Errorf("%s: --%s is empty; leave it out for all", c.CommandPath(), name))
		}
	}
	return errors.Join(errs...)
}

func newKeyCommand() *cobra.Command {
	c := &cobra.Command{Use: "new", Short: "Make one key pair.", Args: cobra.NoArgs}
	dir := c.Flags().String("out", "", "`folder` of the two files, made if need be")
	algorithm := c.Flags().String("algorithm", keys.EdDSA, "of the key's tokens: EdDSA, ES256 or RS256; records and tickets need EdDSA")
	required(c, "out")
	c.RunE = func(c *cobra.Command, _ []string) error {
		k, err := keys.Generate(*algorithm)
		if err != nil {
			return err
		}
		private, public, err := keys.Write(*dir, k)
		if err != nil {
			return err
		}
		fmt.Fprintf(c.OutOrStdout(), "kid      %s\nprivate  %s\npublic   %s\n", k.ID, private, public)
		return nil
	}
	return c
}

// required marks flags that a command cannot do without.
func required(c *cobra.Command, names ...string) {
	for _, name := range names {
		if err := c.MarkFlagRequired(name); err != nil {
			panic(err) // the command has no such flag
		}
	}
}

func apiKeyCommand() *cobra.Command {
	c := &cobra.Command{Use: "api", Short: "Make an API key for a client, and append its digest to a file.", Args: cobra.NoArgs}
	f := c.Flags()
	file := f.String("file", "", "file of API keys, made if need be; only the key's digest goes into it")
	name := f.String("name", "", "whose key it is; keys of one name are counted together")
	models := f.String("models", "", "models that the key may name, with commas between; none means all")
	scope := f.String("scope", "", "priority: requests with the key may say how urgent they are; default: they may not")
	var limits auth.Limits
	f.IntVar(&limits.Requests, "requests-per-minute", 0, "requests that its holder may make in a minute; 0 leaves it to the configuration")
	f.IntVar(&limits.Tokens, "tokens-per-minute", 0, "tokens, prompts and answers together, that its holder may use in a minute; 0 leaves it to the configuration")
	f.IntVar(&limits.Concurrent, "concurrent", 0, "requests that its holder may have under way at once; 0 leaves it to the configuration")
	required(c, "file", "name")
	c.RunE = func(c *cobra.Command, _ []string) error {
		if err := emptyLists(c, "models"); err != nil {
			return err
		}
		key, err := auth.AppendAPIKey(*file, *name, splitList(*models), limits, splitList(*scope)...)
		if err != nil {
			return err
		}
		fmt.Fprintln(c.OutOrStdout(), key)
		return nil
	}
	return c
}

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

const kubernetesAbout = `Makes the Secrets of a gateway in a namespace of Kubernetes: what is missing is made, tokens and the certificate are
renewed, and the rest is left as it is. The Helm chart runs it at each installation, and every 6 hours.

  NAME-signing-keys      private keys that sign tokens and records; the gateway does not read it
  NAME-api-keys          api-keys: the file of API keys; key: the client's key itself
  NAME-agent-keys, NAME-admin-keys, NAME-record-keys
                         the public keys by which gateways check tokens and records; engines need NAME-record-keys too
  NAME-record-key        own.jwk: the private key with which gateways sign records
  NAME-gateway-token, NAME-prometheus-token
                         tokens that end after 24 hours
  NAME-redis             the password of Redis
  NAME-agents-tls        a certificate of its own for the agents' listener, for 90 days; ca.crt is for the agents

A rotation of the signing keys takes three calls, so that nothing valid is refused: the first publishes new public keys, one that comes ten minutes
later or more lets them sign, and one that comes two days after that removes the old ones. --rotate-every begins one by the age of the keys; --rotate
begins one now, and later calls go on with it. --leaked waits for nothing: fresh keys sign, all others are withdrawn, and what they signed is refused
within three minutes. Tokens that you minted with a leaked key must be minted again.`

func kubernetesKeysCommand() *cobra.Command {
	c := &cobra.Command{Use: "kubernetes", Short: "Make and renew the Secrets of a gateway in Kubernetes.", Long: kubernetesAbout, Args: cobra.NoArgs}
	f := c.Flags()
	name := f.String("name", "pdrouter", "what the names of the Secrets begin with")
	namespace := f.String("namespace", "", "namespace of the Secrets; default that of the kubeconfig, or of the pod that this runs in")
	kubeconfig := f.String("kubeconfig", "", "`file` that says where the API server is, and who asks; default: the service account of the pod that this runs in")
	var r kubesecrets.Rotation
	f.DurationVar(&r.Every, "rotate-every", 0, "how long a signing key signs before the next one is made; 0 for ever")
	f.BoolVar(&r.Now, "rotate", false, "begin a rotation of the signing keys now")
	f.BoolVar(&r.Leaked, "leaked", false, "others may have the signing keys: withdraw them now")
	c.RunE = func(c *cobra.Command, _ []string) error {
		if r.Every != 0 && r.Every < 24*time.Hour {
			return fmt.Errorf("%s: --rotate-every is %v; want 0, or 24h and more", c.CommandPath(), r.Every)
		}
		store, in, err := kubesecrets.Connect(*kubeconfig, *namespace)
		if err != nil {
			return err
		}
		done, err := kubesecrets.Make(c.Context(), store, *name, in, r, time.Now())
		for _, line := range done {
			fmt.Fprintln(c.OutOrStdout(), line)
		}
		return err
	}
	return c
}
