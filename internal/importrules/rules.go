package importrules

// module is the path of this module.
const module = "github.com/delaybridge/delaybridge"

// A rule says what the packages under one path may import beside the standard
// library. The first rule whose path matches a package is the package's rule.
//
// Paths are relative to the module; one that ends in "/..." matches the
// package and all below it, "..." matches every package.
type rule struct {
	path   string
	own    []string // packages of this module, beside those of the same rule
	others bool     // whether other modules may be imported
	except []string // other modules that may not be, all the same
	why    string
}

const (
	redis = "github.com/redis/..."
	nats  = "github.com/nats-io/..."
)

// top is what nothing else may import, tests neither.
var top = []string{"cmd/...", "examples/...", "integration/..."}

var rules = []rule{
	{
		path: "subjects/...",
		why:  "subjects are a wire format: pure functions of the standard library, which every other package can use",
	},
	{
		path: "job/jobtest/...", own: []string{"job"},
		why: "the conformance suite must run against a store of any module, so it knows the vocabulary alone",
	},
	{
		path: "job/...",
		why:  "the vocabulary of all packages: what it imported, every package would depend on",
	},
	{
		path: "api/...", own: []string{"job"},
		why: "the messages of the admin API are a wire format: whoever asks and whoever answers share them, and nothing else",
	},
	{
		path: "memdelay/...", own: []string{"job", "subjects"}, others: true, except: []string{redis, nats},
		why: "a store knows the contract in job and its own medium: nothing of the other store, of NATS or of who calls it",
	},
	{
		path: "redisdelay/...", own: []string{"job", "subjects"}, others: true, except: []string{nats},
		why: "a store knows the contract in job and its own medium: nothing of the other store, of NATS or of who calls it",
	},
	{
		path: "adapter/failover/...", own: []string{"job", "memdelay/..."}, others: true, except: []string{redis, nats},
		why: "it composes a store that can fail and local ones, and is itself a job.Store: nothing of Redis, of NATS or of the bridge",
	},
	{
		path: "adapter/...", own: []string{"api", "job", "subjects", "internal/failpoint", "internal/natstrace"}, others: true, except: []string{redis},
		why: "the adapter knows stores as job.Store alone, so that each can take another's place at run time",
	},
	{
		path: "client/...", own: []string{"api", "job", "subjects", "internal/natstrace"}, others: true, except: []string{redis},
		why: "programs that schedule jobs speak NATS alone; the stores must stay out of their builds",
	},
	{
		path: "workers/...", own: []string{"job", "subjects", "internal/failpoint", "internal/natstrace"}, others: true, except: []string{redis},
		why: "programs that run jobs speak NATS alone; the stores must stay out of their builds",
	},
	{
		path: "cmd/...", others: true,
		own: []string{"adapter/...", "api", "client/...", "job", "memdelay/...", "redisdelay/...", "subjects", "workers/..."},
		why: "the wiring sees every part, but what only tests need is not shipped",
	},
	{
		path: "examples/...", own: []string{"client", "job", "workers"}, others: true, except: []string{redis},
		why: "users copy them: what they import, a user's program can",
	},
	{
		path: "docs/...",
		why:  "documents; only their test is Go",
	},
	{
		path: "internal/failpoint/...",
		why:  "it is the one test support that is shipped, as an empty function",
	},
	{
		path: "internal/natstrace/...", others: true, except: []string{redis},
		why: "it carries trace context in NATS headers for the bridge, its clients and its workers, and knows none of them",
	},
	{
		path: "internal/...", others: true,
		why: "test support stays below all packages, so that the tests of each can use it",
	},
	{
		path: "integration/...", own: []string{"..."}, others: true,
		why: "the top of the tree: nothing imports it",
	},
}
