// Plain-worker runs jobs with nats.go alone: a queue subscription, and the verbs
// of JetStream as answers.
//
//	go run ./examples/go/plain-worker orders.remind
package main

import (
	"cmp"
	"fmt"
	"log"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/nats-io/nats.go"
)

func main() {
	if len(os.Args) != 2 {
		log.Fatal("usage: plain-worker TARGET")
	}
	nc, err := nats.Connect(cmp.Or(os.Getenv("NATS_URL"), nats.DefaultURL), nats.MaxReconnects(-1))
	if err != nil {
		log.Fatal(err)
	}
	sub, err := nc.QueueSubscribe(os.Args[1], "workers", func(m *nats.Msg) { work(nc, m) })
	if err != nil {
		log.Fatal(err)
	}
	log.Printf("working on %s", sub.Subject)

	// A drain finishes the jobs that have arrived, then closes the connection.
	closed := make(chan struct{})
	nc.SetClosedHandler(func(*nats.Conn) { close(closed) })
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, syscall.SIGINT, syscall.SIGTERM)
	<-stop
	if err := nc.Drain(); err != nil {
		log.Fatal(err)
	}
	<-closed
}

func work(nc *nats.Conn, m *nats.Msg) {
	fmt.Printf("working on %s, attempt %s\n", m.Data, m.Header.Get("Delay-Attempt"))
	var verb string
	switch {
	case len(m.Data) == 0:
		verb = "+TERM no order given" // never again
	case string(m.Data) == "order 18" && m.Header.Get("Delay-Attempt") == "1":
		verb = "-NAK 1s" // again, in a second; m.NakWithDelay(time.Second) is the same
	default:
		verb = "+ACK reminded of " + string(m.Data) // done, with a result; m.Ack() has none
	}
	// m.InProgress() starts the lease anew, for work that takes long.
	//
	// Sent as a request the answer is confirmed once it is durable, or refused.
	answer, err := nc.Request(m.Reply, []byte(verb), 5*time.Second)
	switch {
	case err != nil:
		fmt.Printf("%s is not confirmed, so it may come again: %v\n", verb, err)
	case len(answer.Data) > 0:
		fmt.Printf("%s is refused: %s\n", verb, answer.Data)
	default:
		fmt.Printf("%s is durable\n", verb)
	}
}
