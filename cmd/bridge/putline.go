package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"unicode/utf8"

	"github.com/nats-io/nats.go"

	"github.com/delaybridge/delaybridge/client"
)

// maxLine bounds one line of a file of jobs; no NATS server takes more in a message.
const maxLine = 96 << 20

// jobLine is one line of a file of jobs.
type jobLine struct {
	Target  string           `json:"target"`
	Payload json.RawMessage  `json:"payload"` // a text as it is; another value as JSON
	Base64  *string          `json:"payload_base64"`
	In      *string          `json:"in"`
	At      *string          `json:"at"`
	ID      string           `json:"id"`
	Headers map[string]texts `json:"headers"`
	Replace bool             `json:"replace"`
}

// texts is one text or a list of them.
type texts []string

func (t *texts) UnmarshalJSON(b []byte) error {
	if len(b) > 0 && b[0] == '[' {
		return json.Unmarshal(b, (*[]string)(t))
	}
	var s string
	err := json.Unmarshal(b, &s)
	*t = texts{s}
	return err
}

// readJobLine reads a line, or says what is wrong with it.
func readJobLine(line []byte) (client.Item, error) {
	if !utf8.Valid(line) {
		return client.Item{}, errors.New("not a job as JSON: not UTF-8; payload_base64 is for bytes")
	}
	dec := json.NewDecoder(bytes.NewReader(line))
	dec.DisallowUnknownFields()
	var l jobLine
	if err := dec.Decode(&l); err != nil {
		return client.Item{}, fmt.Errorf("not a job as JSON: %w", err)
	}
	if _, err := dec.Token(); err != io.EOF {
		return client.Item{}, errors.New("not a job as JSON: more than one value in the line")
	}
	if l.Target == "" {
		return client.Item{}, errors.New("no target")
	}
	item := client.Item{Job: client.Job{ID: l.ID, Target: l.Target, Replace: l.Replace}}
	if len(l.Headers) > 0 {
		item.Header = nats.Header{}
		for name, values := range l.Headers {
			item.Header[name] = values
		}
	}
	w := when{in: l.In, at: l.At}
	err := w.parse()
	item.In, item.At = w.delay, w.time
	if err == nil {
		item.Payload, err = l.payload()
	}
	return item, err
}

func (l *jobLine) payload() ([]byte, error) {
	switch {
	case l.Base64 != nil && l.Payload != nil:
		return nil, errors.New("payload and payload_base64: give one of them")
	case l.Base64 != nil:
		data, err := base64.StdEncoding.DecodeString(*l.Base64)
		if err != nil {
			return nil, fmt.Errorf("payload_base64: %w", err)
		}
		return data, nil
	case len(l.Payload) > 0 && l.Payload[0] == '"':
		var s string
		err := json.Unmarshal(l.Payload, &s)
		return []byte(s), err
	}
	return l.Payload, nil
}

// readLine is a line of a file, or why there is none.
type readLine struct {
	text   []byte
	number int
	read   int64 // bytes of the file up to its end
	err    error
}

// each sends the lines that are not blank, and at last an error, until ctx is done. A
// read that does not end, of a terminal or a pipe, outlives that.
func (r *lineReader) each(ctx context.Context) <-chan readLine {
	lines := make(chan readLine)
	go func() {
		for {
			text, err := r.next()
			select {
			case lines <- readLine{text, r.line, r.read, err}:
			case <-ctx.Done():
				return
			}
			if err != nil {
				return
			}
		}
	}()
	return lines
}

// lineReader reads lines of which none is kept in memory longer than one round.
type lineReader struct {
	r    *bufio.Reader
	line int   // number of the last one
	read int64 // bytes
}

// next returns the next line that is not blank; io.EOF: there is none.
func (r *lineReader) next() ([]byte, error) {
	for {
		line, err := r.whole()
		if err != nil {
			return nil, err
		}
		if line = bytes.TrimSpace(line); len(line) > 0 {
			return line, nil
		}
	}
}

func (r *lineReader) whole() ([]byte, error) {
	var line []byte
	for {
		part, err := r.r.ReadSlice('\n')
		r.read += int64(len(part))
		if len(line)+len(part) > maxLine {
			return nil, fmt.Errorf("line %d has more than %d MiB", r.line+1, maxLine>>20)
		}
		switch {
		case err == nil || errors.Is(err, io.EOF) && len(line)+len(part) > 0:
			r.line++
			return append(line, part...), nil
		case !errors.Is(err, bufio.ErrBufferFull):
			return nil, err
		}
		line = append(line, part...)
	}
}
