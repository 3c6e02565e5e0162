package integration

import (
	"context"
	"fmt"
	"github.com/redis/go-redis/v9"
	"strings"
	"time"
)

func (s *system) buckets(target string, from, to time.Time) {
	type b struct {
		n   int
		max time.Duration
		at  time.Time
	}
	m := map[int]*b{}
	for _, d := range s.Deliveries(target) {
		if d.Due.Before(from) || !d.Due.Before(to) {
			continue
		}
		k := int(d.Due.Sub(from) / (50 * time.Millisecond))
		if m[k] == nil {
			m[k] = &b{}
		}
		m[k].n++
		if l := d.At.Sub(d.Due); l > m[k].max {
			m[k].max, m[k].at = l, d.At
		}
	}
	for k := 0; k < 200; k++ {
		if m[k] != nil && m[k].max > 20*time.Millisecond {
			fmt.Printf("%4dms n=%d max=%v delivered at +%v\n", k*50, m[k].n, m[k].max, m[k].at.Sub(from))
		}
	}
}

func (s *system) slowlog() {
	c := redis.NewClient(&redis.Options{Addr: s.redis.Addr()})
	defer c.Close()
	for _, e := range c.SlowLogGet(context.Background(), 200).Val() {
		if e.Time.Before(time.Now().Add(-10 * time.Second)) {
			continue
		}
		kind := ""
		for _, a := range e.Args {
			if len(a) < 30 && strings.HasSuffix(a, ":b1") {
				kind = a
			}
		}
		fmt.Println(e.Time.Format("05"), len(e.Args[1]), e.Duration, kind, len(e.Args), e.Args[:2], e.Args[len(e.Args)-1:])
	}
}
