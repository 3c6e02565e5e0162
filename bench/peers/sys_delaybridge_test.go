package main

import (
	"bufio"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
)

func TestDueTimesAreWrittenExactly(t *testing.T) {
	for _, c := range []struct {
		due             time.Time
		subject, header string
	}{
		{time.UnixMilli(1796031000000), "delay.at.1796031000000.bench.jobs", ""},
		{time.UnixMilli(1796031000007), "delay.at.1796031000007.bench.jobs", ""},
		{time.Unix(1796031000, 7_000_001), "delay.to.bench.jobs", "2026-11-30T09:30:00.007000001Z"},
	} {
		m := (&jobMaker{}).message(c.due, []byte("x"))
		if m.Subject != c.subject || m.Header.Get("Delay-At") != c.header || string(m.Data) != "x" {
			t.Errorf("%v: subject %q, Delay-At %q, payload %q", c.due, m.Subject, m.Header.Get("Delay-At"), m.Data)
		}
	}
}

func TestChosenIDsHave36CharactersAndDiffer(t *testing.T) {
	j := jobMaker{prefix: nats.NewInbox()[len(nats.InboxPrefix):] + "-"}
	seen := map[string]bool{}
	for range 1000 {
		id := j.message(time.UnixMilli(1), nil).Header.Get(nats.MsgIdHdr)
		if len(id) != 36 || seen[id] {
			t.Fatalf("id %q has %d characters or came before", id, len(id))
		}
		seen[id] = true
	}
}

func TestReadyIsAwaited(t *testing.T) {
	for _, c := range []struct{ log, err string }{
		{`{"level":"INFO","msg":"ready","nats":"x"}`, ""},
		{"{\"level\":\"WARN\",\"msg\":\"not yet ready\"}\n{\"msg\":\"ready\"}", ""},
		{"plain words\n", "before it was ready:\nplain words"},
		{"", "before it was ready"},
	} {
		err := awaitReady(bufio.NewScanner(strings.NewReader(c.log)))
		if (err == nil) != (c.err == "") || err != nil && !strings.Contains(err.Error(), c.err) {
			t.Errorf("%q: error %v, want %q", c.log, err, c.err)
		}
	}
}

// connect returns two connections to a server of the test's own.
func connect(t *testing.T) (producer, bridge *nats.Conn) {
	t.Helper()
	s, err := server.NewServer(&server.Options{Host: "127.0.0.1", Port: -1, NoSigs: true, NoLog: true})
	if err != nil {
		t.Fatal(err)
	}
	s.Start()
	t.Cleanup(func() { s.Shutdown(); s.WaitForShutdown() })
	var conns [2]*nats.Conn
	for i := range conns {
		if conns[i], err = nats.Connect(s.ClientURL()); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(conns[i].Close)
	}
	return conns[0], conns[1]
}

func TestThePipeKeepsToItsWindowAndReportsEachJobOnce(t *testing.T) {
	nc, bridge := connect(t)
	const window, rounds = 16, 20
	sub, err := bridge.SubscribeSync("delay.>")
	if err != nil {
		t.Fatal(err)
	}
	bridge.Flush()
	p, err := newBridgePipe(jobMaker{}, nc, window)
	if err != nil {
		t.Fatal(err)
	}
	outcomes := make([]int, window*rounds)
	closed := make(chan struct{})
	go func() {
		defer close(closed)
		for i := range outcomes {
			p.Enqueue(time.UnixMilli(1), nil, func(err error) {
				outcomes[i]++
				if err != nil {
					t.Error(err)
				}
			})
		}
		p.Close()
	}()
	for range rounds {
		var full []*nats.Msg
		for range window {
			m, err := sub.NextMsg(10 * time.Second)
			if err != nil {
				t.Fatal(err)
			}
			full = append(full, m)
		}
		nc.Flush() // whatever else was published is here then
		bridge.Flush()
		if n, _, _ := sub.Pending(); n > 0 {
			t.Fatalf("%d published beyond the window of %d", n, window)
		}
		for _, m := range full {
			m.Respond([]byte(`{"stream":"DELAY","seq":1,"duplicate":false,"id":"a"}`))
		}
	}
	<-closed
	for i, n := range outcomes {
		if n != 1 {
			t.Errorf("job %d has %d outcomes, want 1", i, n)
		}
	}
}

func TestRefusalsAreErrors(t *testing.T) {
	for _, c := range []struct{ reply, err string }{
		{`{"stream":"DELAY","seq":17,"duplicate":false,"id":"a","due":"2026-11-30T09:30:00.000000Z","stored":"redis"}`, ""},
		{`{"stream":"DELAY","error":{"code":429,"err_code":20429,"description":"full"}}`, "refused: 429/20429 full"},
		{`{"stream":"DELAY","seq":17}`, "names no job"},
		{`+OK`, "invalid character"},
		{``, "no bridge takes jobs"},
	} {
		err := refusal(&nats.Msg{Data: []byte(c.reply)})
		if (err == nil) != (c.err == "") || err != nil && !strings.Contains(err.Error(), c.err) {
			t.Errorf("%s: error %v, want %q", c.reply, err, c.err)
		}
	}
}

func TestWithoutABridgeEachJobFails(t *testing.T) {
	nc, _ := connect(t)
	p, err := newBridgePipe(jobMaker{}, nc, 16)
	if err != nil {
		t.Fatal(err)
	}
	failed := 0
	for range 100 {
		p.Enqueue(time.UnixMilli(1), nil, func(err error) {
			if err != nil {
				failed++
			}
		})
	}
	p.Close()
	if failed != 100 {
		t.Errorf("%d of 100 jobs failed", failed)
	}
}
