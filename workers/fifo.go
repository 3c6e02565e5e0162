package workers

// fifo is a queue of jobs. The zero value is empty.
type fifo struct {
	jobs []*Job
	head int
}

func (q *fifo) len() int { return len(q.jobs) - q.head }

func (q *fifo) push(j *Job) {
	if q.head > 64 && q.head > len(q.jobs)/2 {
		n := copy(q.jobs, q.jobs[q.head:])
		clear(q.jobs[n:])
		q.jobs, q.head = q.jobs[:n], 0
	}
	q.jobs = append(q.jobs, j)
}

// pop returns nil when the queue is empty.
func (q *fifo) pop() *Job {
	if q.len() == 0 {
		return nil
	}
	j := q.jobs[q.head]
	q.jobs[q.head] = nil
	q.head++
	return j
}

// remove takes out what match reports true for.
func (q *fifo) remove(match func(*Job) bool) (out []*Job) {
	kept := q.jobs[q.head:q.head]
	for _, j := range q.jobs[q.head:] {
		if match(j) {
			out = append(out, j)
		} else {
			kept = append(kept, j)
		}
	}
	clear(q.jobs[q.head+len(kept):])
	q.jobs = q.jobs[:q.head+len(kept)]
	return out
}
