package subjects

import (
	"errors"
	"strconv"
	"unicode/utf8"
)

// The kinds of error that this package returns, wrapped with what is wrong and
// the text it is wrong in.
var (
	ErrSchedule = errors.New("schedule not valid")
	ErrTarget   = errors.New("target not valid")
	ErrToken    = errors.New("token not valid")
	ErrName     = errors.New("name not valid")
)

// maxQuoted is how much of an offending text an error repeats: the text may
// be as long as a message and errors are logged and sent back.
const maxQuoted = 64

// quote returns s quoted, cut to a length that is fit for an error.
func quote(s string) string {
	if len(s) <= maxQuoted {
		return strconv.Quote(s)
	}
	end := maxQuoted
	for end > maxQuoted-utf8.UTFMax && !utf8.RuneStart(s[end]) {
		end--
	}
	return strconv.Quote(s[:end]) + "..."
}
