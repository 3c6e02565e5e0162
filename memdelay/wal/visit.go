package wal

// Visit is Inspect that also calls visit with every record that can be read, in
// order. The record is valid during the call only, except for its ID.
func Visit(dir string, fs FS, visit func(segment uint64, r *Record) error) (Report, error) {
	return walk(dir, fs, visit)
}
