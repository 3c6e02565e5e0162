package adapter

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/delaybridge/delaybridge/job"
	"github.com/nats-io/nats.go"
)

// verb is what an acknowledgement asks for.
type verb uint8

const (
	verbDone verb = iota
	verbNak
	verbProgress
	verbTerm
	verbClaim       // a worker makes the job its own
	verbPubAck      // the answer of a stream
	verbUnanswered  // the server's 503: nobody subscribes
	verbMeaningless // another status message; not a settlement
)

// ack is a parsed acknowledgement.
type ack struct {
	verb   verb
	delay  time.Duration // verbNak; negative: by the job's backoff
	spare  bool          // verbNak: the attempt does not count
	worker string        // verbClaim
	reason string        // verbTerm, and why for verbNak
	result []byte        // verbDone: what the reply-to gets; nil: nothing was sent
}

const (
	headerStatus      = "Status"
	headerServiceCode = "Nats-Service-Error-Code"
	headerServiceText = "Nats-Service-Error"
	maxReasonLen      = 240
)

// parseAck reads the verbs of JetStream as clients send them to a reply
// subject. ADR-15 of the NATS architecture repository defines them.
func parseAck(m *nats.Msg) (ack, *job.Error) {
	if len(m.Header) > 0 {
		if status := m.Header.Get(headerStatus); status != "" {
			if status == "503" && len(m.Data) == 0 {
				return ack{verb: verbUnanswered}, nil
			}
			return ack{verb: verbMeaningless}, nil
		}
		if code := m.Header.Get(headerServiceCode); code != "" {
			return ack{verb: verbNak, delay: -1, reason: code + " " + m.Header.Get(headerServiceText)}, nil
		}
	}
	return parseVerb(m.Data)
}

func parseVerb(data []byte) (ack, *job.Error) {
	word, rest, spaced := bytes.Cut(data, []byte(" "))
	switch string(word) {
	case "", "+OK":
		if spaced {
			break
		}
		return ack{verb: verbDone}, nil
	case "+ACK":
		if !spaced {
			return ack{verb: verbDone}, nil
		}
		return ack{verb: verbDone, result: rest}, nil
	case "-NAK":
		a, err := parseNak(bytes.TrimSpace(rest))
		if err != nil {
			return ack{}, job.ErrHeader.With("-NAK: %v; send -NAK, -NAK {\"delay\":<ns>} or -NAK <duration>", err)
		}
		return a, nil
	case "+CLAIM":
		worker, err := parseClaim(rest)
		return ack{verb: verbClaim, worker: worker}, err
	case "+WPI":
		return ack{verb: verbProgress}, nil
	case "+TERM":
		return ack{verb: verbTerm, reason: cut(string(rest), maxReasonLen)}, nil
	}
	if len(data) > 0 && data[0] == '{' {
		return ack{verb: verbPubAck, result: data}, nil
	}
	return ack{}, job.ErrHeader.With("unknown verb %q; send an empty message, +ACK, -NAK, +WPI or +TERM", cut(string(data), 32))
}

// parseNak reads what follows -NAK: nothing, a Go duration, or
// {"delay":<ns>,"spare":<bool>,"reason":<text>}, each of which may be absent.
func parseNak(b []byte) (ack, error) {
	a := ack{verb: verbNak, delay: -1}
	if len(b) == 0 {
		return a, nil
	}
	if b[0] != '{' {
		d, err := time.ParseDuration(string(b))
		if err == nil && d < 0 {
			err = errNegative
		}
		a.delay = d
		return a, err
	}
	var body struct {
		Delay  *int64 `json:"delay"`
		Spare  bool   `json:"spare"`
		Reason string `json:"reason"`
	}
	if err := json.Unmarshal(b, &body); err != nil {
		return a, err
	}
	a.spare, a.reason = body.Spare, cut(body.Reason, maxReasonLen)
	if body.Delay != nil {
		if *body.Delay < 0 {
			return a, errNegative
		}
		a.delay = time.Duration(*body.Delay)
	}
	return a, nil
}

var errNegative = errors.New("negative delay")

// parsePubAck reads a stream's answer: nil when the stream stored the message.
func parsePubAck(b []byte) error {
	var body struct {
		Stream string `json:"stream"`
		Error  *struct {
			Code        int    `json:"code"`
			Description string `json:"description"`
		} `json:"error"`
	}
	if err := json.Unmarshal(b, &body); err != nil {
		return fmt.Errorf("not a PubAck: %w", err)
	}
	if body.Error != nil {
		return fmt.Errorf("stream refused: %s (%d)", body.Error.Description, body.Error.Code)
	}
	if body.Stream == "" {
		return errors.New("not a PubAck: no stream named")
	}
	return nil
}

// cut shortens s to at most n bytes.
func cut(s string, n int) string {
	if len(s) > n {
		return s[:n]
	}
	return s
}

// appendRefusal appends the body that tells a worker why its settlement was
// refused.
func appendRefusal(dst []byte, e *job.Error) []byte {
	dst = append(dst, `-ERR {"code":`...)
	dst = strconv.AppendInt(dst, int64(e.Code), 10)
	dst = append(dst, `,"err_code":`...)
	dst = strconv.AppendInt(dst, int64(e.ErrCode), 10)
	dst = append(dst, `,"description":`...)
	return append(appendJSONString(dst, e.Description), '}')
}
