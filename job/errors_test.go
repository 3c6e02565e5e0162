package job

import (
	"encoding/json"
	"errors"
	"fmt"
	"testing"
)

func TestErrorCodes(t *testing.T) {
	for _, c := range []struct {
		err           *Error
		code, errCode int
	}{
		{ErrSchedule, 400, 10189}, {ErrTarget, 400, 10190}, {ErrForbidden, 403, 20403}, {ErrHeader, 400, 20400},
		{ErrTooLarge, 400, 10054}, {ErrConflict, 409, 20409}, {ErrFull, 429, 20429}, {ErrUnavailable, 503, 20503},
		{ErrStale, 409, 20409}, {ErrUnknown, 404, 20404},
	} {
		described := c.err.With("job %q", "a")
		if described.Description != `job "a"` || c.err.Description == described.Description {
			t.Errorf("With gave the description %q to a copy of %v", described.Description, c.err)
		}
		for name, err := range map[string]error{
			"bare": c.err, "described": described, "wrapped": fmt.Errorf("put: %w", described), "joined": errors.Join(errors.New("x"), c.err),
		} {
			if got := AsError(err); got.Code != c.code || got.ErrCode != c.errCode {
				t.Errorf("%s: AsError(%v) has the codes %d/%d, want %d/%d", name, err, got.Code, got.ErrCode, c.code, c.errCode)
			}
			if !errors.Is(err, c.err) {
				t.Errorf("%s: %v is not %v", name, err, c.err)
			}
			for _, other := range []error{ErrSchedule, ErrUnknown} {
				if other != error(c.err) && errors.Is(err, other) {
					t.Errorf("%s: %v is taken for %v", name, err, other)
				}
			}
		}
	}
}

func TestErrorIsNotEveryError(t *testing.T) {
	if errors.Is(ErrHeader, errors.New("control header not valid")) || ErrHeader.Is(nil) {
		t.Error("an error of another type is taken for an *Error")
	}
	half := &Error{Code: ErrUnknown.Code, ErrCode: ErrTarget.ErrCode}
	if errors.Is(half, ErrUnknown) || errors.Is(half, ErrTarget) {
		t.Error("errors that share one code of two are taken for each other")
	}
}

func TestAsErrorOfOthers(t *testing.T) {
	got := AsError(errors.New("connection refused: 50%"))
	if !errors.Is(got, ErrUnavailable) || got.Description != "connection refused: 50%" {
		t.Errorf("AsError = %+v, want ErrUnavailable with the text", got)
	}
}

func TestErrorText(t *testing.T) {
	err := ErrTarget.With("target %q has a wildcard", `a."*"`)
	if got, want := err.Error(), `target "a.\"*\"" has a wildcard (400/10190)`; got != want {
		t.Errorf("Error() = %s, want %s", got, want)
	}
	got, marshalErr := json.Marshal(map[string]error{"error": err})
	want := `{"error":{"code":400,"err_code":10190,"description":"target \"a.\\\"*\\\"\" has a wildcard"}}`
	if marshalErr != nil || string(got) != want {
		t.Errorf("JSON %s, %v, want %s", got, marshalErr, want)
	}
}
