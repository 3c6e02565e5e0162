package admin

import (
	"context"
	"fmt"
	"log/slog"
	"regexp"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/micro"

	"github.com/delaybridge/delaybridge/adapter"
	"github.com/delaybridge/delaybridge/api"
	"github.com/delaybridge/delaybridge/job"
	"github.com/delaybridge/delaybridge/subjects"
)

const (
	// maxCalls is how many calls run at once.
	maxCalls = 64
	// maxScans is how many of them may be such that look at many jobs, and atOnce how
	// many of these do so while the others wait: the store has jobs to take and to
	// deliver meanwhile.
	maxScans, atOnce = 16, 2
	// defaultTimeout bounds one call: nats request gives up after as long.
	defaultTimeout = 5 * time.Second
	// patience is how long the next call of a subject waits for the one before.
	patience = 20 * time.Millisecond
	// stopGrace is how long Stop waits for running calls before it cancels them.
	stopGrace = 2 * time.Second
)

// Options say what a Service answers for. Bridge, Store and Prefix are needed.
type Options struct {
	Bridge  *adapter.Bridge
	Store   job.Store // the one that Bridge works with
	Prefix  string
	Version string       // of the program
	Logger  *slog.Logger // nil: slog.Default()
	// Config returns the configuration in force, without secrets; nil: none.
	Config func() map[string]string
	// Mutations says whether calls that change something are answered; nil: they are.
	Mutations func() bool
	// PeersOnly answers other bridges alone: there is no micro service.
	PeersOnly bool
	// Timeout bounds a call; zero: 5 s.
	Timeout time.Duration
}

// Service answers until Stop.
type Service struct {
	o       Options
	nc      *nats.Conn
	micro   micro.Service // nil with PeersOnly
	peers   *nats.Subscription
	started job.Time
	slots   chan struct{}
	scans   chan struct{} // calls that look at many jobs, or wait for it
	looking chan struct{} // those that do
	audit   audit
	ctx     context.Context // of all calls
	cancel  context.CancelFunc

	mu      sync.Mutex
	stopped bool
	running sync.WaitGroup
}

// Serve starts to answer on nc, which should be used for nothing else: other traffic
// would delay the answers. Its error and closed handlers must be set before.
func Serve(nc *nats.Conn, o Options) (*Service, error) {
	if o.Timeout == 0 {
		o.Timeout = defaultTimeout
	}
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	ctx, cancel := context.WithCancel(context.Background())
	s := &Service{o: o, nc: nc, started: o.Bridge.Now(), slots: make(chan struct{}, maxCalls),
		scans: make(chan struct{}, maxScans), looking: make(chan struct{}, atOnce), audit: audit{log: o.Logger}, ctx: ctx, cancel: cancel}
	if err := s.listen(); err != nil {
		s.Stop()
		return nil, fmt.Errorf("admin API: %w", err)
	}
	return s, nil
}

// listen subscribes to all subjects; when it returns the server knows of them.
func (s *Service) listen() (err error) {
	if s.peers, err = s.nc.Subscribe(subjects.PeerAPI(s.o.Prefix, s.o.Bridge.ID()), s.fromPeer); err != nil {
		return err
	}
	if !s.o.PeersOnly {
		if err := s.addService(); err != nil {
			return err
		}
	}
	return s.nc.FlushTimeout(s.o.Timeout)
}

func (s *Service) addService() (err error) {
	s.micro, err = micro.AddService(s.nc, micro.Config{
		Name:        api.Service,
		Version:     semver(s.o.Version),
		Description: "delayed jobs: look, change, operate",
		Metadata:    map[string]string{"bridge": s.o.Bridge.ID(), "prefix": s.o.Prefix},
	})
	if err != nil {
		return err
	}
	for i := range verbs {
		v := &verbs[i]
		if err := s.addEndpoint(v, v.name, subjects.API(s.o.Prefix, v.name, "")); err != nil {
			return err
		}
		if !v.targeted {
			continue
		}
		if err := s.addEndpoint(v, v.name+"-target", subjects.API(s.o.Prefix, v.name, ">")); err != nil {
			return err
		}
	}
	return nil
}

func (s *Service) addEndpoint(v *verb, name, subject string) error {
	return s.micro.AddEndpoint(name, micro.HandlerFunc(func(r micro.Request) { s.handle(v, r) }),
		micro.WithEndpointSubject(subject), micro.WithEndpointMetadata(v.metadata()))
}

// Stop stops to answer. It returns when no call runs any more; the connection stays
// open.
func (s *Service) Stop() {
	if s.micro != nil {
		s.micro.Stop() // fails only when the connection is closed
	}
	if s.peers != nil {
		s.peers.Drain()
	}
	s.mu.Lock()
	s.stopped = true
	s.mu.Unlock()
	defer time.AfterFunc(stopGrace, s.cancel).Stop()
	s.running.Wait()
	s.cancel()
}

// begin takes a slot for a call, which end gives back, or says why there is none.
func (s *Service) begin() *job.Error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stopped {
		return job.ErrUnavailable.With("bridge %s is stopping; ask again", s.o.Bridge.ID())
	}
	select {
	case s.slots <- struct{}{}:
		s.running.Add(1)
		return nil
	default:
		return job.ErrFull.With("bridge %s is answering %d calls, which is as many as it does at once; ask again later", s.o.Bridge.ID(), maxCalls)
	}
}

func (s *Service) end() {
	<-s.slots
	s.running.Done()
}

// beginScan waits until a call may look at many jobs, which ends with end. Other
// bridges, who ask for what a disk holds, need not wait.
func (s *Service) beginScan(ctx context.Context, c *call) (end func(), err error) {
	if c.peer {
		return func() {}, nil
	}
	select {
	case s.scans <- struct{}{}:
	default:
		return nil, job.ErrFull.With("bridge %s is answering %d calls that look at many jobs, which is as many as it does at once; ask again later", s.o.Bridge.ID(), maxScans)
	}
	select {
	case s.looking <- struct{}{}:
		return func() { <-s.looking; <-s.scans }, nil
	case <-ctx.Done():
		<-s.scans
		return nil, job.ErrFull.With("bridge %s is busy with other calls that look at many jobs; ask again later", s.o.Bridge.ID())
	}
}

// mutable says why nothing may be changed, or nil.
func (s *Service) mutable() *job.Error {
	if s.o.Mutations == nil || s.o.Mutations() {
		return nil
	}
	return job.ErrForbidden.With("switched off by api.mutations on bridge %s", s.o.Bridge.ID())
}

var (
	isSemver  = regexp.MustCompile(`^(0|[1-9]\d*)(\.(0|[1-9]\d*)){2}(-` + semverPart + `(\.` + semverPart + `)*)?(\+[0-9A-Za-z-]+(\.[0-9A-Za-z-]+)*)?$`)
	notSemver = regexp.MustCompile(`[^0-9A-Za-z-]+`)
)

// semverPart is one of what follows a dash: a number without leading zeros, or a word.
const semverPart = `(0|[1-9]\d*|\d*[A-Za-z-][0-9A-Za-z-]*)`

// semver spells a version as micro services demand it.
func semver(version string) string {
	v := strings.TrimPrefix(version, "v")
	if isSemver.MatchString(v) {
		return v
	}
	word := strings.Trim(notSemver.ReplaceAllString(v, "-"), "-")
	if word == "" {
		return "0.0.0"
	}
	return "0.0.0+" + word
}
