package redisdelay

import (
	"crypto/sha1"
	"embed"
	"encoding/hex"
	"strings"
)

//go:embed scripts/*.lua
var scriptFiles embed.FS

// script is a Lua script and the hash that Redis knows it by.
type script struct {
	name, source, sha string
}

// The scripts; each file says what it takes and returns.
var (
	ingestScript     = numberedScript("ingest")
	claimScript      = numberedScript("claim", "code", "samples")
	settleScript     = numberedScript("settle", "lease")
	cancelScript     = numberedScript("cancel", "lease", "single")
	rescheduleScript = numberedScript("reschedule", "lease", "single")
	pruneScript      = numberedScript("prune")
	mergeScript      = numberedScript("merge", "lease", "code")
	mergeEndedScript = mergeScript.allowOOM()
	expiredScript    = newScript("expired", "lease")
	headsScript      = newScript("heads", "samples")
	getScript        = newScript("get", "ended", "lease")
	listScript       = newScript("list", "position")
	firstsScript     = newScript("firsts", "position")
	upcomingScript   = newScript("upcoming", "position")

	allScripts = []*script{
		ingestScript, claimScript, settleScript, cancelScript, rescheduleScript, pruneScript,
		mergeScript, mergeEndedScript, expiredScript, headsScript, getScript, listScript, firstsScript, upcomingScript,
	}
)

func readScript(name string) string {
	b, err := scriptFiles.ReadFile("scripts/" + name + ".lua")
	if err != nil {
		panic(err) // the file is part of the program
	}
	return string(b)
}

// numberedScript is a script of a call that writes.
func numberedScript(name string, parts ...string) *script {
	return newScript(name, append([]string{"ended", "prologue"}, parts...)...)
}

// newScript puts parts that scripts share between the first line of a script,
// which must stay first, and the rest.
func newScript(name string, parts ...string) *script {
	first, rest, _ := strings.Cut(readScript(name), "\n")
	source := first + "\n"
	for _, p := range parts {
		source += readScript(p)
	}
	return hashed(name, source+rest)
}

func hashed(name, source string) *script {
	sum := sha1.Sum([]byte(source))
	return &script{name: name, source: source, sha: hex.EncodeToString(sum[:])}
}

// allowOOM is the same script, for calls that Redis may run at maxmemory.
func (sc *script) allowOOM() *script {
	_, rest, _ := strings.Cut(sc.source, "\n")
	return hashed(sc.name, "#!lua flags=allow-oom\n"+rest)
}
