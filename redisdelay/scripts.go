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
	claimScript      = numberedScript("claim")
	settleScript     = numberedScript("settle")
	cancelScript     = numberedScript("cancel")
	rescheduleScript = numberedScript("reschedule")
	expiredScript    = newScript("expired", readScript("expired"))
	getScript        = newScript("get", readScript("get"))
	listScript       = newScript("list", readScript("list"))

	allScripts = []*script{
		ingestScript, claimScript, settleScript, cancelScript, rescheduleScript,
		expiredScript, getScript, listScript,
	}
)

func readScript(name string) string {
	b, err := scriptFiles.ReadFile("scripts/" + name + ".lua")
	if err != nil {
		panic(err) // the file is part of the program
	}
	return string(b)
}

// numberedScript is a script of a call that writes: the prologue goes between
// its first line (which must stay first) and the rest.
func numberedScript(name string) *script {
	first, rest, _ := strings.Cut(readScript(name), "\n")
	return newScript(name, first+"\n"+readScript("prologue")+rest)
}

func newScript(name, source string) *script {
	sum := sha1.Sum([]byte(source))
	return &script{name: name, source: source, sha: hex.EncodeToString(sum[:])}
}
