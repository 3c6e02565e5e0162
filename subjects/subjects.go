package subjects

import "strings"

// AppendAckSubject appends the subject on which the delivery t is settled:
// <prefix>.ack.<bridge>.<token>.
func AppendAckSubject(dst []byte, prefix, bridge string, t Token) []byte {
	dst = append(dst, prefix...)
	dst = append(dst, ".ack."...)
	dst = append(dst, bridge...)
	dst = append(dst, '.')
	return AppendToken(dst, t)
}

// ParseAck takes a subject of [AppendAckSubject] apart. The parts share
// subject's memory; the token is read by [ParseToken].
func ParseAck(prefix, subject string) (bridge, token string, ok bool) {
	rest, ok := cutPrefix(prefix, subject)
	if !ok {
		return "", "", false
	}
	if rest, ok = strings.CutPrefix(rest, "ack."); !ok {
		return "", "", false
	}
	bridge, token, _ = strings.Cut(rest, ".")
	if bridge == "" || token == "" || strings.Contains(token, ".") {
		return "", "", false
	}
	return bridge, token, true
}

// AckWildcard returns the subject that a bridge subscribes to for the
// settlements of what it, or the bridge it stands in for, delivered.
func AckWildcard(prefix, bridge string) string { return prefix + ".ack." + bridge + ".*" }

// Event returns the subject on which events of the name are published.
func Event(prefix, name string) string { return prefix + ".event." + name }

// Presence returns the subject that the bridge of that id answers while it
// runs.
func Presence(prefix, bridge string) string { return prefix + ".sys.bridge." + bridge }

// Takeover returns the subject on which a bridge that drains asks a peer to
// serve its settlements.
func Takeover(prefix string) string { return prefix + ".sys.takeover" }

// Started returns the subject on which a bridge that starts names itself, so
// that the peer which served its settlements meanwhile lets go of them.
func Started(prefix string) string { return prefix + ".sys.started" }

// State returns the subject on which bridges tell each other whether they
// reach the store that they share.
func State(prefix string) string { return prefix + ".sys.state" }

// Canary returns the subject on which a bridge asks the others whether they
// can write to that store.
func Canary(prefix string) string { return prefix + ".sys.canary" }

// The subjects of workers: <prefix>.<kind>.<worker>.
const (
	KindHeartbeat = "hb"    // a worker tells that it lives, and what it runs
	KindBye       = "bye"   // a worker leaves
	KindPing      = "ping"  // a bridge asks whether a worker is there
	KindJob       = "job"   // a bridge sends a job to a worker of its choice
	KindOwner     = "owner" // a bridge tells that a worker owns a job, or no longer does
)

// Worker returns the subject of that kind of a worker.
func Worker(prefix, kind, worker string) string { return prefix + "." + kind + "." + worker }

// WorkerWildcard returns the subject that matches those of the kind of all
// workers.
func WorkerWildcard(prefix, kind string) string { return Worker(prefix, kind, "*") }

// ParseWorker returns the worker in a subject of [Worker]; ok is false when it
// is none of that kind, or names no valid worker.
func ParseWorker(prefix, kind, subject string) (worker string, ok bool) {
	rest, ok := cutPrefix(prefix, subject)
	if !ok {
		return "", false
	}
	k, worker, _ := strings.Cut(rest, ".")
	return worker, k == kind && CheckWorkerID(worker) == nil
}

// API returns the subject of a verb of the admin API; that for the jobs of one
// target alone, unless target is empty.
func API(prefix, verb, target string) string {
	if target == "" {
		return prefix + ".api." + verb
	}
	return prefix + ".api." + verb + "." + target
}

// APITarget returns the target in a subject of [API]; empty: it has none. ok is
// false when it is no subject of the verb.
func APITarget(prefix, verb, subject string) (target string, ok bool) {
	rest, ok := strings.CutPrefix(subject, API(prefix, verb, ""))
	if !ok || rest == "" {
		return "", ok
	}
	return strings.CutPrefix(rest, ".")
}

// PeerAPI returns the subject on which a bridge answers its peers for what its disk
// alone holds.
func PeerAPI(prefix, bridge string) string { return prefix + ".sys.api." + bridge }

// Paused returns the subject on which bridges tell each other what is paused.
func Paused(prefix string) string { return prefix + ".sys.paused" }
