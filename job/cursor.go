package job

import (
	"cmp"
	"encoding/base64"
	"encoding/binary"
	"slices"
)

// A Cursor of List is the base64 of a job's Next, 8 bytes big-endian, and its
// id. All stores use this form, so that pages of several can be merged.

// CursorOf is the cursor of a page that ends with i.
func CursorOf(i *Info) string { return Cursor(i.Next, i.ID) }

// Cursor is the cursor of a page that ends with the job id at next.
func Cursor(next Time, id string) string {
	b := binary.BigEndian.AppendUint64(nil, uint64(next))
	return base64.RawURLEncoding.EncodeToString(append(b, id...))
}

// ParseCursor returns the place that a cursor, not empty, names.
func ParseCursor(cursor string) (next Time, id string, err error) {
	b, err := base64.RawURLEncoding.DecodeString(cursor)
	if err != nil || len(b) < 8 {
		return 0, "", ErrHeader.With("cursor %.40q not readable: pass the one of the page before, or none to start", cursor)
	}
	return Time(binary.BigEndian.Uint64(b)), string(b[8:]), nil
}

// CursorBefore reports whether a names an earlier place than b; both must be
// readable.
func CursorBefore(a, b string) bool {
	na, ia, _ := ParseCursor(a)
	nb, ib, _ := ParseCursor(b)
	return cmp.Or(cmp.Compare(na, nb), cmp.Compare(ia, ib)) < 0
}

// ByNext orders jobs as List does.
func ByNext(a, b Info) int { return cmp.Or(cmp.Compare(a.Next, b.Next), cmp.Compare(a.ID, b.ID)) }

// FirstOf returns what comes first of several pages of List after the same cursor,
// at most limit, and the cursor that follows it. jobs are those of all pages, ends
// their cursors: where one of them was cut, so must be the others. place is a job's
// Next and ID. A job that is in several pages at the same place is returned once.
func FirstOf[T any](limit int, jobs []T, ends []string, place func(*T) (Time, string)) ([]T, string) {
	cursor := func(j *T) string { return Cursor(place(j)) }
	compare := func(a, b T) int {
		na, ia := place(&a)
		nb, ib := place(&b)
		return cmp.Or(cmp.Compare(na, nb), cmp.Compare(ia, ib))
	}
	slices.SortFunc(jobs, compare)
	jobs = slices.CompactFunc(jobs, func(a, b T) bool { return compare(a, b) == 0 })
	end := ""
	for _, e := range ends {
		if e != "" && (end == "" || CursorBefore(e, end)) {
			end = e
		}
	}
	if end != "" {
		jobs = slices.DeleteFunc(jobs, func(j T) bool { return CursorBefore(end, cursor(&j)) })
	}
	if len(jobs) > limit {
		jobs = jobs[:limit]
		end = cursor(&jobs[limit-1])
	}
	return jobs, end
}
