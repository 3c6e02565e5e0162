package adapter

import (
	"encoding/json"
	"strconv"

	"github.com/delaybridge/delaybridge/job"
)

// timeLayout is RFC 3339 in UTC with microseconds.
const timeLayout = "2006-01-02T15:04:05.000000Z"

// appendPubAck appends the answer to a stored or duplicate job: a JetStream
// PubAck with more fields.
func appendPubAck(dst []byte, seq uint64, id string, r job.PutResult) []byte {
	dst = append(dst, `{"stream":"DELAY","seq":`...)
	dst = strconv.AppendUint(dst, seq, 10)
	dst = append(dst, `,"duplicate":`...)
	dst = strconv.AppendBool(dst, r.Duplicate)
	dst = append(dst, `,"id":`...)
	dst = appendJSONString(dst, id)
	dst = append(dst, `,"due":"`...)
	dst = r.Due.Time().AppendFormat(dst, timeLayout)
	dst = append(dst, `","stored":"`...)
	dst = append(dst, r.Stored...)
	return append(dst, `"}`...)
}

// appendPubError appends the answer to a refused job.
func appendPubError(dst []byte, e *job.Error) []byte {
	dst = append(dst, `{"stream":"DELAY","error":{"code":`...)
	dst = strconv.AppendInt(dst, int64(e.Code), 10)
	dst = append(dst, `,"err_code":`...)
	dst = strconv.AppendInt(dst, int64(e.ErrCode), 10)
	dst = append(dst, `,"description":`...)
	dst = appendJSONString(dst, e.Description)
	return append(dst, `}}`...)
}

// appendJSONString appends s as a JSON string. Bytes that are not UTF-8 become
// U+FFFD.
func appendJSONString(dst []byte, s string) []byte {
	for i := range len(s) {
		if c := s[i]; c < ' ' || c > '~' || c == '"' || c == '\\' {
			b, _ := json.Marshal(s) // a string cannot fail
			return append(dst, b...)
		}
	}
	dst = append(dst, '"')
	dst = append(dst, s...)
	return append(dst, '"')
}
