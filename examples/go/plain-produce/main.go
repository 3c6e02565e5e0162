// Plain-produce schedules a job with nats.go alone, and waits for the result of
// the worker.
//
//	go run ./examples/go/plain-produce orders.remind
package main

import (
	"cmp"
	"encoding/json"
	"fmt"
	"log"
	"os"
	"time"

	"github.com/nats-io/nats.go"
)

func main() {
	if len(os.Args) != 2 {
		log.Fatal("usage: plain-produce TARGET")
	}
	nc, err := nats.Connect(cmp.Or(os.Getenv("NATS_URL"), nats.DefaultURL))
	if err != nil {
		log.Fatal(err)
	}
	defer nc.Close()
	if err := produce(nc, os.Args[1]); err != nil {
		log.Fatal(err)
	}
}

func produce(nc *nats.Conn, target string) error {
	results, err := nc.SubscribeSync(nc.NewInbox())
	if err != nil {
		return err
	}
	m := nats.NewMsg("delay.to." + target) // or delay.in.1s.<target>, without a header
	m.Header.Set("Delay-In", "1s")
	m.Header.Set("Delay-Reply-To", results.Subject)
	m.Data = []byte("order 17")
	answer, err := nc.RequestMsg(m, 5*time.Second)
	if err != nil {
		return err // nats.ErrNoResponders: no bridge runs
	}
	if err := stored(answer); err != nil {
		return err
	}
	result, err := results.NextMsg(time.Minute)
	if err != nil {
		return fmt.Errorf("no result yet: %w", err)
	}
	fmt.Printf("result: %s\n", result.Data)
	return nil
}

// stored reads the answer to a job: it is stored, or refused with a reason.
func stored(m *nats.Msg) error {
	var a struct {
		ID     string    `json:"id"`
		Due    time.Time `json:"due"`
		Stored string    `json:"stored"`
		Error  *struct {
			Code        int    `json:"code"`
			Description string `json:"description"`
		} `json:"error"`
	}
	if err := json.Unmarshal(m.Data, &a); err != nil {
		return fmt.Errorf("answer %q: %w", m.Data, err)
	}
	if a.Error != nil {
		return fmt.Errorf("refused with %d: %s", a.Error.Code, a.Error.Description)
	}
	fmt.Println(a.ID, "due", a.Due, "stored", a.Stored)
	return nil
}
