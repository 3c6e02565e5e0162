package workers

// ledger knows the deliveries that the worker has and bridges wait for, by
// token. Those that are listed count against what a heartbeat can tell.
type ledger struct {
	jobs   map[string]*Job
	listed int
	bytes  int
}

const (
	// maxListed is how many tokens a bridge takes in one heartbeat.
	maxListed = 4096
	// quoted is what a token takes in a heartbeat beside itself.
	quoted = len(`"",`)
)

// room reports whether one more delivery fits a heartbeat of limit bytes.
func (l *ledger) room(limit int) bool {
	return l.listed < maxListed && l.bytes+maxTokenLen+quoted <= limit
}

func (l *ledger) has(token string) bool { return l.jobs[token] != nil }

func (l *ledger) add(j *Job) {
	if l.jobs == nil {
		l.jobs = map[string]*Job{}
	}
	l.jobs[j.token] = j
}

// list makes j count; it has been added.
func (l *ledger) list(j *Job) {
	l.listed++
	l.bytes += len(j.token) + quoted
}

// remove removes j, which is listed unless it has only arrived.
func (l *ledger) remove(j *Job) {
	if l.jobs[j.token] != j {
		return
	}
	delete(l.jobs, j.token)
	if j.stage != stageArrived {
		l.listed--
		l.bytes -= len(j.token) + quoted
	}
	j.stage = stageGone
}
