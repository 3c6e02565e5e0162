package testredis

import (
	"os"
	"path/filepath"
)

// RestartEmpty kills the server if it runs, and starts it again without its
// data.
func (s *Server) RestartEmpty() {
	s.t.Helper()
	s.Kill()
	entries, err := os.ReadDir(s.dir)
	if err != nil {
		s.t.Fatal(err)
	}
	for _, e := range entries {
		if err := os.RemoveAll(filepath.Join(s.dir, e.Name())); err != nil {
			s.t.Fatal(err)
		}
	}
	s.Restart()
}
