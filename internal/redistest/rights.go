package redistest

import "strings"

// Rights are what a gateway's user must be allowed at a Redis whose keys and channels begin with "pdrouter", in the words of
// an ACL: for the engines' metadata, the clients' limits and what gateways share, and for nothing else. docs/metadata.md prints them.
const Rights = "resetkeys ~pdrouter:* resetchannels &pdrouter:* -@all +ping +client|setname +eval +evalsha +time " +
	"+get +hget +hset +hdel +hlen +hkeys +hstrlen +hgetall +del +set +pexpire +pttl +getrange +exists +zadd +zrange +zremrangebyscore " +
	"+publish +subscribe"

// ClusterRights are what it must be allowed besides in a cluster.
const ClusterRights = "+cluster|slots +cluster|shards +command +asking"

// User returns what gives a server the user "gateway" with the password "a-password" and these rights.
func User(rights ...string) []string {
	return append([]string{"--user", "gateway", "on", ">a-password"}, strings.Fields(strings.Join(rights, " "))...)
}
