package main

import "github.com/nats-io/nats.go"

// natsKeys are ways to reach NATS that fewer people need.
var natsKeys = []*key{
	{name: "nats.token", unit: "text", producer: true, secret: true, envAlso: "NATS_TOKEN",
		help: "token, in place of user and password", set: text(func(c *config) *string { return &c.nats.token })},
	{name: "nats.password_file", unit: "file", producer: true,
		help: "file with the password of nats.user, or with a token when there is no user; read for each new connection", set: file(func(c *config) *string { return &c.nats.passwordFile })},
	{name: "nats.tls_first", def: "false", unit: "true or false", producer: true,
		help: "begin with the TLS handshake, for servers with handshake_first", set: yesNo(func(c *config) *bool { return &c.nats.tlsFirst })},
	{name: "nats.inbox_prefix", def: "_INBOX", unit: "subject", producer: true,
		help: "first tokens of the subjects on which answers arrive, for users that may subscribe to no others", set: inboxPrefix},
	{name: "nats.context", unit: "name", producer: true, envAlso: "NATS_CONTEXT",
		help: "context of the nats command line that gives what no other place does; commands other than serve and dev use the selected one when neither this nor nats.url is given",
		set:  text(func(c *config) *string { return &c.nats.context })},
}

var inboxPrefix = one(func(c *config, v string) error {
	c.nats.inboxPrefix = v
	return nats.CustomInboxPrefix(v)(&nats.Options{})
})
