package integration

import (
	"sync"
	"time"
)

// pulse notices when the machine stands still: what is measured beside it
// cannot be faster than that.
type pulse struct {
	mu     sync.Mutex
	worst  time.Duration
	ending chan struct{}
	ended  chan struct{}
}

const beat = 5 * time.Millisecond

func startPulse() *pulse {
	p := &pulse{ending: make(chan struct{}), ended: make(chan struct{})}
	go p.run()
	return p
}

func (p *pulse) run() {
	defer close(p.ended)
	ticker := time.NewTicker(beat)
	defer ticker.Stop()
	for last := time.Now(); ; {
		select {
		case <-p.ending:
			return
		case <-ticker.C:
		}
		now := time.Now()
		p.mu.Lock()
		p.worst = max(p.worst, now.Sub(last)-beat)
		p.mu.Unlock()
		last = now
	}
}

func (p *pulse) stop() {
	close(p.ending)
	<-p.ended
}

// standstill is the longest that was noticed.
func (p *pulse) standstill() time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.worst
}
