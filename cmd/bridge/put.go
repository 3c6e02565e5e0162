package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/nats-io/nats.go"

	"github.com/delaybridge/delaybridge/api"
	"github.com/delaybridge/delaybridge/client"
)

// maxPayload is the most that a NATS server can be set to take.
const maxPayload = 64 << 20

// putRequest is what the command line of put asks for.
type putRequest struct {
	*call
	job  client.Job
	when when
	file string // a line per job, in place of the job; empty: none
}

func runPut(ctx context.Context, c *command, std stdio, args []string) error {
	r, err := readPut(c, std, args)
	if err != nil {
		return err
	}
	return r.with(func(s *session) error {
		if r.file != "" {
			return putFile(ctx, s, r.file)
		}
		var receipt client.Receipt
		if r.when.time.IsZero() {
			receipt, err = s.Schedule(ctx, r.job, r.when.delay)
		} else {
			receipt, err = s.ScheduleAt(ctx, r.job, r.when.time)
		}
		if err != nil {
			return err
		}
		return r.print(std.out, receipt)
	})
}

func readPut(c *command, std stdio, args []string) (*putRequest, error) {
	r := &putRequest{call: newCall(c, std), job: client.Job{Header: nats.Header{}}}
	r.when.register(r.fs)
	r.fs.StringVar(&r.job.ID, "id", "", "the job's `id`, which makes putting it again harmless (default: made by the bridge)")
	r.fs.BoolVar(&r.job.Replace, "replace", false, "replace the pending job with this id")
	r.fs.StringVar(&r.file, "file", "", "put the jobs of this `file` of JSON lines; - is stdin")
	r.fs.Func("header", "a header `name=value` of the job, or one that controls it, such as Delay-Ack-Wait=5s; can be repeated", func(s string) error {
		name, value, ok := strings.Cut(s, "=")
		if !ok || name == "" {
			return errors.New("want name=value")
		}
		r.job.Header.Add(name, value)
		return nil
	})
	if err := r.parse(args, 0, 2); err != nil {
		return nil, err
	}
	if err := r.check(); err != nil {
		return nil, badUsage(c, err)
	}
	if r.file != "" {
		return r, nil
	}
	var err error
	r.job.Target = r.fs.Arg(0)
	r.job.Payload, err = payload(std.in, r.fs.Arg(1))
	return r, err
}

// check reads the time, and what else can be wrong.
func (r *putRequest) check() error {
	if r.file == "" {
		if r.fs.NArg() != 2 {
			return argumentError(r.c, r.fs, 2)
		}
		if late := r.fs.Arg(1); !r.dashes && r.isFlag(late) {
			return lateError(late)
		}
		return r.when.parse()
	}
	for _, name := range []string{"in", "at", "id", "replace", "header"} {
		if isSet(r.fs, name) {
			return fmt.Errorf("--%s: not with --file, whose lines say it", name)
		}
	}
	if r.fs.NArg() > 0 {
		return errors.New("TARGET and PAYLOAD: not with --file, whose lines say them")
	}
	return nil
}

// isFlag reports whether a payload is one of the flags of put: --in=5s after the
// target is no payload, and the job would be due now.
func (r *putRequest) isFlag(payload string) bool {
	name, dashed := strings.CutPrefix(payload, "-")
	name, _, _ = strings.Cut(strings.TrimPrefix(name, "-"), "=")
	return dashed && r.fs.Lookup(name) != nil
}

func payload(in io.Reader, arg string) ([]byte, error) {
	if arg != "-" {
		return []byte(arg), nil
	}
	data, err := io.ReadAll(io.LimitReader(in, maxPayload+1))
	if err != nil {
		return nil, fmt.Errorf("read the payload from stdin: %w", err)
	}
	if len(data) > maxPayload {
		return nil, fmt.Errorf("the payload has more than %d MiB: no NATS server takes that", maxPayload>>20)
	}
	return data, nil
}

func (r *putRequest) print(w io.Writer, receipt client.Receipt) error {
	due := receipt.Due.Format(timeLayout)
	if r.asJSON {
		return printJSON(w, struct {
			ID api.ID `json:"id"` // any bytes
			client.Receipt
			Due string `json:"due"` // as the bridge writes it
		}{api.ID(receipt.ID), receipt, due})
	}
	note := ""
	if receipt.Duplicate {
		note = " duplicate: not stored again"
	}
	_, err := fmt.Fprintf(w, "%s due %s stored %s%s\n", safe(receipt.ID), due, receipt.Stored, note)
	return err
}
