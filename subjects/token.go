package subjects

import (
	"encoding/base64"
	"encoding/binary"
	"fmt"
	"math"
	"strings"
)

// The stores that a token can name.
const (
	StoreRedis byte = 'r'
	StoreLocal byte = 'l'
)

// Token names one delivery of one job, and where the job is kept.
type Token struct {
	Store       byte   // StoreRedis or StoreLocal
	Shard       uint16 // within the store
	Generated   bool   // the store minted the ID
	Incarnation uint64
	Attempt     uint32 // not zero
	Nonce       uint64 // not zero
	ID          string // 1 to 255 bytes of any value
}

// The binary form of a token, see the package comment.
const (
	tokenVersion   = 1
	tokenGenerated = 0x01 // the only flag

	maxID        = 255
	tokenFixed   = 1 + 1 + 2 + 8 + 8 // all before the attempt
	maxTokenSize = tokenFixed + binary.MaxVarintLen32 + maxID
)

// encoding is strict about the unused bits of the last character.
var encoding = base64.RawURLEncoding.Strict()

// AppendToken appends the text of t to dst. It is one subject token. It does
// not check t: what is out of range there is refused by [ParseToken].
func AppendToken(dst []byte, t Token) []byte {
	var buf [maxTokenSize]byte
	head := byte(tokenVersion << 4)
	if t.Generated {
		head |= tokenGenerated
	}
	b := append(buf[:0], head, t.Store)
	b = binary.BigEndian.AppendUint16(b, t.Shard)
	b = binary.BigEndian.AppendUint64(b, t.Incarnation)
	b = binary.BigEndian.AppendUint64(b, t.Nonce)
	b = binary.AppendUvarint(b, uint64(t.Attempt))
	b = append(b, t.ID...)
	return encoding.AppendEncode(dst, b)
}

// ParseToken reads a token. Anything but the exact text that [AppendToken]
// makes of a legal Token is ErrToken. The ID is its only allocation.
func ParseToken(s string) (Token, error) {
	var buf [maxTokenSize]byte
	b, flaw := decodeToken(buf[:], s)
	if flaw != "" {
		return Token{}, tokenError(s, flaw)
	}
	t := Token{
		Generated:   b[0]&tokenGenerated != 0,
		Store:       b[1],
		Shard:       binary.BigEndian.Uint16(b[2:]),
		Incarnation: binary.BigEndian.Uint64(b[4:]),
		Nonce:       binary.BigEndian.Uint64(b[12:]),
	}
	attempt, n := binary.Uvarint(b[tokenFixed:])
	id := b[tokenFixed+max(n, 0):]
	switch {
	case t.Store != StoreRedis && t.Store != StoreLocal:
		return Token{}, tokenError(s, "names no store that this program knows")
	case t.Nonce == 0:
		return Token{}, tokenError(s, "no nonce")
	case attempt == 0 || attempt > math.MaxUint32 || n != uvarintLen(attempt):
		return Token{}, tokenError(s, "attempt out of range")
	case len(id) == 0 || len(id) > maxID:
		return Token{}, tokenError(s, "want an id of 1 to 255 bytes")
	}
	t.Attempt = uint32(attempt)
	t.ID = string(id)
	return t, nil
}

// decodeToken decodes s into buf and checks length, version and flags.
func decodeToken(buf []byte, s string) (b []byte, flaw string) {
	// The decoder skips line breaks wherever they are.
	if encoding.DecodedLen(len(s)) > len(buf) || strings.ContainsAny(s, "\r\n") {
		return nil, "too long or not base64url"
	}
	n, err := encoding.Decode(buf, []byte(s))
	switch b = buf[:n]; {
	case err != nil:
		return nil, "not base64url"
	case n == 0:
		return nil, "empty"
	case b[0]>>4 != tokenVersion:
		return nil, fmt.Sprintf("version %d, this program reads %d", b[0]>>4, tokenVersion)
	case b[0]&0x0f&^tokenGenerated != 0:
		return nil, "unknown flag"
	case n <= tokenFixed:
		return nil, "cut short"
	}
	return b, ""
}

// uvarintLen returns the length of the shortest form of v.
func uvarintLen(v uint64) int {
	n := 1
	for ; v >= 0x80; v >>= 7 {
		n++
	}
	return n
}

func tokenError(s, flaw string) error {
	return fmt.Errorf("%w: %s: %s", ErrToken, quote(s), flaw)
}
