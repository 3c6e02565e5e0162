package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/delaybridge/delaybridge/client"
	"github.com/delaybridge/delaybridge/subjects"
)

// putRequest is what the command line of put asks for.
type putRequest struct {
	job    client.Job
	in     time.Duration
	at     time.Time
	asJSON bool
}

func runPut(ctx context.Context, c *command, std stdio, args []string) error {
	r, cfg, err := readPut(c, std, args)
	if err != nil {
		return err
	}
	nc, err := cfg.nats.dial(program + "/put")
	if err != nil {
		return err
	}
	defer nc.Close()
	cl, err := client.New(nc, client.Options{Prefix: cfg.bridge.Prefix})
	if err != nil {
		return badUsage(c, err)
	}
	var receipt client.Receipt
	if r.at.IsZero() {
		receipt, err = cl.Schedule(ctx, r.job, r.in)
	} else {
		receipt, err = cl.ScheduleAt(ctx, r.job, r.at)
	}
	if err != nil {
		return putError(cfg, err)
	}
	return r.print(std.out, receipt)
}

func readPut(c *command, std stdio, args []string) (*putRequest, *config, error) {
	fs := newFlags(c)
	flags := registerKeys(fs, producerKeys())
	r := &putRequest{job: client.Job{Header: nats.Header{}}}
	in := fs.String("in", "", "deliver after this `delay`, e.g. 90s, 1h30m, 7d (without --in and --at: now)")
	at := fs.String("at", "", "deliver at this `time`: RFC 3339, Unix seconds or milliseconds")
	fs.StringVar(&r.job.ID, "id", "", "the job's `id`, which makes putting it again harmless (default: made by the bridge)")
	fs.BoolVar(&r.job.Replace, "replace", false, "replace the pending job with this id")
	fs.BoolVar(&r.asJSON, "json", false, "print JSON")
	fs.Func("header", "a header `name=value` of the job, or one that controls it, such as Delay-Ack-Wait=5s; can be repeated", func(s string) error {
		name, value, ok := strings.Cut(s, "=")
		if !ok || name == "" {
			return errors.New("want name=value")
		}
		r.job.Header.Add(name, value)
		return nil
	})
	if err := parseFlags(c, fs, std, args, 2); err != nil {
		return nil, nil, err
	}
	cfg, err := loadProducerConfig(flags, std.env)
	if err == nil {
		err = r.setTime(*in, *at)
	}
	if err != nil {
		return nil, nil, badUsage(c, err)
	}
	r.job.Target = fs.Arg(0)
	r.job.Payload, err = payload(std.in, fs.Arg(1))
	return r, &cfg, err
}

func (r *putRequest) setTime(in, at string) (err error) {
	switch {
	case in != "" && at != "":
		return errors.New("--in and --at: give one of them")
	case in != "":
		if r.in, err = subjects.ParseHeaderDelay(in); err != nil {
			return fmt.Errorf("--in: %w", err)
		}
	case at != "":
		if r.at, err = subjects.ParseHeaderTime(at); err != nil {
			return fmt.Errorf("--at: %w", err)
		}
	}
	return nil
}

func payload(in io.Reader, arg string) ([]byte, error) {
	if arg != "-" {
		return []byte(arg), nil
	}
	data, err := io.ReadAll(in)
	if err != nil {
		return nil, fmt.Errorf("read the payload from stdin: %w", err)
	}
	return data, nil
}

// putError says which command line would have helped.
func putError(cfg *config, err error) error {
	if errors.Is(err, client.ErrNoBridge) {
		return fmt.Errorf("no bridge answers on %s with the prefix %q: start one, or set --nats-url or --prefix",
			withoutSecrets(cfg.nats.urls...), cfg.bridge.Prefix)
	}
	var refused *client.Error
	if errors.As(err, &refused) {
		return fmt.Errorf("refused with %d/%d: %s", refused.Code, refused.ErrCode, refused.Description)
	}
	return err
}

func (r *putRequest) print(w io.Writer, receipt client.Receipt) error {
	due := receipt.Due.Format(timeLayout)
	if r.asJSON {
		return json.NewEncoder(w).Encode(struct {
			client.Receipt
			Due string `json:"due"` // as the bridge writes it
		}{receipt, due})
	}
	note := ""
	if receipt.Duplicate {
		note = " duplicate: not stored again"
	}
	_, err := fmt.Fprintf(w, "%s due %s stored %s%s\n", receipt.ID, due, receipt.Stored, note)
	return err
}

// timeLayout is RFC 3339 with microseconds, the unit of due times.
const timeLayout = "2006-01-02T15:04:05.000000Z07:00"
