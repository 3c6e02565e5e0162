package job

import (
	"encoding/json"
	"errors"
	"fmt"
)

// Error is an error that a producer or worker sees. Two Errors with the same
// codes match under [errors.Is], whatever their descriptions.
type Error struct {
	Code        int    // as in HTTP
	ErrCode     int    // as in JetStream's err_code
	Description string // what is wrong, where, and what to do
}

// The errors of the contract, each with its wire codes.
var (
	ErrSchedule    = &Error{400, 10189, "delay, time or schedule not valid"}
	ErrTarget      = &Error{400, 10190, "target not valid"}
	ErrForbidden   = &Error{403, 20403, "target not allowed"}
	ErrHeader      = &Error{400, 20400, "control header not valid"}
	ErrTooLarge    = &Error{400, 10054, "message too large"}
	ErrConflict    = &Error{409, 20409, "job is running or lives elsewhere"}
	ErrFull        = &Error{429, 20429, "store full or intake overloaded"}
	ErrUnavailable = &Error{503, 20503, "no store can take the job"}
	ErrStale       = &Error{409, 20409, "not the present delivery of this job"}
	ErrUnknown     = &Error{404, 20404, "no such job"}
)

// With returns a copy of e with another description.
func (e *Error) With(format string, args ...any) *Error {
	return &Error{e.Code, e.ErrCode, fmt.Sprintf(format, args...)}
}

func (e *Error) Error() string {
	return fmt.Sprintf("%s (%d/%d)", e.Description, e.Code, e.ErrCode)
}

// Is reports whether target is an *Error with the same codes.
func (e *Error) Is(target error) bool {
	t, ok := target.(*Error)
	return ok && t.Code == e.Code && t.ErrCode == e.ErrCode
}

// MarshalJSON writes the error as the "error" member of a PubAck.
func (e *Error) MarshalJSON() ([]byte, error) {
	return json.Marshal(struct {
		Code        int    `json:"code"`
		ErrCode     int    `json:"err_code"`
		Description string `json:"description"`
	}{e.Code, e.ErrCode, e.Description})
}

// AsError returns err as an *Error; one that is not becomes ErrUnavailable
// with err's text.
func AsError(err error) *Error {
	var e *Error
	if errors.As(err, &e) {
		return e
	}
	return ErrUnavailable.With("%v", err)
}

// UnmarshalJSON reads what MarshalJSON writes.
func (e *Error) UnmarshalJSON(b []byte) error {
	var w struct {
		Code        int    `json:"code"`
		ErrCode     int    `json:"err_code"`
		Description string `json:"description"`
	}
	if err := json.Unmarshal(b, &w); err != nil {
		return err
	}
	*e = Error{w.Code, w.ErrCode, w.Description}
	return nil
}
