package testproxy

import (
	"bufio"
	"errors"
	"net"
	"os"
	"reflect"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// backend answers every command with its number, and tells what it got.
func backend(t *testing.T) (addr string, got <-chan string) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	commands := make(chan string, 100)
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go serve(c, commands)
		}
	}()
	return l.Addr().String(), commands
}

func serve(c net.Conn, commands chan<- string) {
	defer c.Close()
	r := bufio.NewReader(c)
	for {
		_, args, err := readValue(r)
		if err != nil {
			return
		}
		commands <- strings.Join(args, " ")
		if _, err := c.Write([]byte("*2\r\n$2\r\nok\r\n:1\r\n")); err != nil {
			return
		}
	}
}

type client struct {
	*testing.T
	net.Conn
	r *bufio.Reader
}

func dial(t *testing.T, p *Proxy) *client {
	c, err := net.Dial("tcp", p.Addr())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return &client{t, c, bufio.NewReader(c)}
}

func (c *client) send(word string) {
	if _, err := c.Write([]byte("*2\r\n$4\r\nECHO\r\n$1\r\n" + word + "\r\n")); err != nil {
		c.Fatal(err)
	}
}

// replied reports whether a whole reply comes before the connection ends.
func (c *client) replied() bool {
	_, _, err := readValue(c.r)
	return err == nil
}

func TestDropReplies(t *testing.T) {
	addr, got := backend(t)
	p := Start(t, addr)
	p.DropReplies(1, func(args []string) bool { return args[1] == "b" })
	c := dial(t, p)
	c.send("a")
	if !c.replied() {
		t.Error("the reply of a was lost")
	}
	c.send("b")
	if c.replied() {
		t.Error("the reply of b was not dropped")
	}
	c = dial(t, p)
	c.send("b")
	if !c.replied() {
		t.Error("a second reply of b was lost")
	}
	for _, want := range []string{"ECHO a", "ECHO b", "ECHO b"} {
		if g := <-got; g != want {
			t.Errorf("the server got %q, want %q", g, want)
		}
	}
	if p.Dropped() != 1 {
		t.Errorf("%d replies dropped, want 1", p.Dropped())
	}
}

func TestStallAndCut(t *testing.T) {
	addr, got := backend(t)
	p := Start(t, addr)
	c := dial(t, p)
	p.Stall()
	c.send("a")
	select {
	case g := <-got:
		t.Errorf("%q passed a stall", g)
	case <-time.After(20 * time.Millisecond):
	}
	p.Resume()
	if <-got; !c.replied() {
		t.Error("no reply after the stall")
	}
	p.Cut()
	if c.replied() {
		t.Error("a cut connection still works")
	}
	c = dial(t, p)
	c.send("b")
	if !c.replied() {
		t.Error("no connection after a cut")
	}
}

func (c *client) reply() string {
	raw, _, _ := readValue(c.r)
	return string(raw)
}

func TestRefuse(t *testing.T) {
	addr, got := backend(t)
	p := Start(t, addr)
	c := dial(t, p)
	p.Disturb(Disturbance{Refuse: "LOADING for a while"})
	c.send("a")
	if r := c.reply(); r != "-LOADING for a while\r\n" {
		t.Errorf("answered %q", r)
	}
	p.Disturb(Disturbance{})
	c.send("b")
	if g := <-got; g != "ECHO b" || !c.replied() {
		t.Errorf("the server got %q, want what was sent after the refusal", g)
	}
}

// A refusal does not overtake the replies of what was sent before.
func TestRefuseKeepsTheOrder(t *testing.T) {
	addr, got := backend(t)
	p := Start(t, addr)
	c := dial(t, p)
	p.Disturb(Disturbance{Delay: 20 * time.Millisecond})
	c.send("a")
	<-got
	p.Disturb(Disturbance{Refuse: "OOM"})
	c.send("b")
	if first, second := c.reply(), c.reply(); first[0] != '*' || second != "-OOM\r\n" {
		t.Errorf("answered %q, then %q", first, second)
	}
}

func TestLose(t *testing.T) {
	for name, d := range map[string]Disturbance{"commands": {LoseCommands: true}, "replies": {LoseReplies: true}} {
		t.Run(name, func(t *testing.T) {
			addr, got := backend(t)
			p := Start(t, addr)
			c, other := dial(t, p), dial(t, p)
			other.send("b")
			if <-got; !other.replied() {
				t.Fatal("nothing is disturbed, and there is no reply")
			}
			p.Disturb(d)
			c.send("l")
			_ = c.SetReadDeadline(time.Now().Add(20 * time.Millisecond))
			if _, err := c.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
				t.Errorf("read %v while %s are lost, want silence", err, name)
			}
			_ = c.SetReadDeadline(time.Time{})
			if n := len(got); (n == 1) != d.LoseReplies {
				t.Errorf("%d commands reached the server", n)
			}
			p.Disturb(Disturbance{})
			if c.replied() {
				t.Error("a connection that lost something goes on")
			}
			other.send("a")
			if !other.replied() {
				t.Error("a connection that lost nothing was cut")
			}
		})
	}
}

func TestTear(t *testing.T) {
	addr, _ := backend(t)
	p := Start(t, addr)
	c := dial(t, p)
	p.Disturb(Disturbance{Tear: func() bool { return true }})
	c.send("a")
	if c.replied() {
		t.Error("a torn reply was whole")
	}
}

func TestDelay(t *testing.T) {
	addr, _ := backend(t)
	p := Start(t, addr)
	c := dial(t, p)
	p.Disturb(Disturbance{Delay: 30 * time.Millisecond})
	start := time.Now()
	c.send("a")
	if !c.replied() || time.Since(start) < 30*time.Millisecond {
		t.Errorf("a reply after %v, want it held back for 30ms", time.Since(start))
	}
}

func TestReadValue(t *testing.T) {
	cases := map[string][]string{
		"+OK\r\n":                             {"OK"},
		":12\r\n":                             {"12"},
		"$3\r\na\r\n\r\n":                     {"a\r\n"},
		"$-1\r\n":                             {""},
		"*-1\r\n":                             nil,
		"*2\r\n$1\r\na\r\n*1\r\n:5\r\n":       {"a", "5"},
		"%1\r\n+k\r\n#t\r\n":                  {"k", "t"},
		">2\r\n+push\r\n$4\r\nmore\r\n":       {"push", "more"},
		"-ERR a thing went wrong\r\n":         {"ERR a thing went wrong"},
		"*1\r\n$10\r\n0123456789\r\n":         {"0123456789"},
		"_\r\n":                               {""},
		",1.5\r\n":                            {"1.5"},
		"=5\r\ntxt:x\r\n":                     {"txt:x"},
		"*3\r\n:1\r\n:2\r\n$5\r\n12\r\n4\r\n": {"1", "2", "12\r\n4"},
	}
	for in, want := range cases {
		raw, got, err := readValue(bufio.NewReader(strings.NewReader(in + "+next\r\n")))
		if err != nil || string(raw) != in || !reflect.DeepEqual(got, want) {
			t.Errorf("%q: read %q as %q, %v, want %q", in, raw, got, err, want)
		}
	}
	for _, in := range []string{"", "?\r\n", "$5\r\nab", "*x\r\n", "*2\r\n+a\r\n"} {
		if _, _, err := readValue(bufio.NewReader(strings.NewReader(in))); err == nil {
			t.Errorf("%q was read", in)
		}
	}
}
