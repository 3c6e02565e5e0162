package memdelay

import (
	"bufio"
	"bytes"
	"context"
	"encoding/gob"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/delaybridge/delaybridge/job"
	"github.com/delaybridge/delaybridge/memdelay/wal"
)

// BenchmarkSnapshot compares ways to write a snapshot and to recover from it:
// the store's own, and two others. Run it with -benchtime 1x to 5x.
func BenchmarkSnapshot(b *testing.B) {
	for _, n := range []int{100_000, 1_000_000} {
		s := benchStore(b, n)
		dir := b.TempDir()
		for _, way := range []struct {
			name  string
			write func(path string, s *Store) error
			read  func(path string, dontNeed bool) (*Store, error)
		}{
			{"gob+mmap+msync", writeMapped, readMapped},
			{"gob+write", func(path string, s *Store) error { return writeFile(path, s, gobEncoder) }, readGob},
			{"json+write", func(path string, s *Store) error { return writeFile(path, s, jsonEncoder) }, readJSON},
		} {
			path := filepath.Join(dir, way.name)
			b.Run(fmt.Sprintf("jobs=%d/%s/write", n, way.name), func(b *testing.B) {
				cpu := cpuTime()
				for b.Loop() {
					_ = os.Remove(path)
					if err := way.write(path, s); err != nil {
						b.Fatal(err)
					}
				}
				b.ReportMetric((cpuTime()-cpu).Seconds()*1000/float64(b.N), "cpu-ms/op")
				info, err := os.Stat(path)
				if err != nil {
					b.Fatal(err)
				}
				b.ReportMetric(float64(info.Size())/float64(n), "B/job")
			})
			for _, dontNeed := range []bool{false, true} {
				if dontNeed && way.name != "gob+mmap+msync" {
					continue
				}
				b.Run(fmt.Sprintf("jobs=%d/%s/recover/dontneed=%v", n, way.name, dontNeed), func(b *testing.B) {
					cpu := cpuTime()
					for b.Loop() {
						r, err := way.read(path, dontNeed)
						if err != nil || r.entries.count != n {
							b.Fatal(err)
						}
						r.order()
					}
					b.ReportMetric((cpuTime()-cpu).Seconds()*1000/float64(b.N), "cpu-ms/op")
				})
			}
		}
	}
}

func benchStore(b *testing.B, n int) *Store {
	s := New(Options{MaxJobs: n})
	jobs := make([]job.Job, 256)
	for i := 0; i < n; i += len(jobs) {
		jobs = jobs[:min(256, n-i)]
		for k := range jobs {
			due := job.At(time.Now()) + job.Time((i+k)*7919%n)
			jobs[k] = job.Job{Target: "bench.jobs", Due: due, Expires: due + 1e12, AckWait: 30 * time.Second, MaxAttempts: 10, Payload: make([]byte, 256)}
		}
		if _, err := s.Put(context.Background(), jobs); err != nil {
			b.Fatal(err)
		}
	}
	return s
}

func cpuTime() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		panic(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

func writeMapped(path string, s *Store) error {
	m, err := wal.OS.Map(path, s.liveBytes()*5/4+8<<10)
	if err != nil {
		return err
	}
	n, err := s.writeSnapshot(m.Bytes(), 1, nil)
	if err == nil {
		err = m.Sync()
	}
	if err == nil {
		err = m.Close()
	}
	if err == nil {
		err = os.Truncate(path, int64(n))
	}
	return err
}

func readMapped(path string, dontNeed bool) (*Store, error) {
	m, err := wal.OS.MapRead(path)
	if err != nil {
		return nil, err
	}
	s := New(Options{})
	body, err := checkSnapshot(m.Bytes(), 1)
	if err == nil {
		err = s.load(bytes.NewReader(body))
	}
	if err == nil && dontNeed {
		err = syscall.Madvise(m.Bytes(), syscall.MADV_DONTNEED)
	}
	if err == nil {
		err = m.Close()
	}
	return s, err
}

type encoder interface{ Encode(v any) error }

func gobEncoder(w io.Writer) encoder  { return gob.NewEncoder(w) }
func jsonEncoder(w io.Writer) encoder { return json.NewEncoder(w) }

func writeFile(path string, s *Store, enc func(io.Writer) encoder) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	defer f.Close()
	w := bufio.NewWriterSize(f, 1<<20)
	e := enc(w)
	if err := s.parts(func(p *part) error { return e.Encode(jsonSafe(e, p)) }); err != nil {
		return err
	}
	if err := w.Flush(); err != nil {
		return err
	}
	return f.Sync()
}

// jsonPart is a part with bytes that JSON does not change.
type jsonPart struct {
	Jobs []jsonImage
	End  *counts
}

type jsonImage struct {
	Blob  []byte
	Image image
}

func jsonSafe(e encoder, p *part) any {
	if _, ok := e.(*json.Encoder); !ok {
		return p
	}
	j := jsonPart{End: p.End}
	for _, im := range p.Jobs {
		blob := []byte(im.Blob)
		im.Blob = ""
		j.Jobs = append(j.Jobs, jsonImage{blob, im})
	}
	return &j
}

func readGob(path string, _ bool) (*Store, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	s := New(Options{})
	return s, s.load(bufio.NewReaderSize(f, 1<<20))
}

func readJSON(path string, _ bool) (*Store, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	s := New(Options{})
	dec := json.NewDecoder(bufio.NewReaderSize(f, 1<<20))
	for {
		var p jsonPart
		if err := dec.Decode(&p); err != nil {
			return s, err
		}
		for i := range p.Jobs {
			p.Jobs[i].Image.Blob = string(p.Jobs[i].Blob)
			s.restore(&p.Jobs[i].Image)
		}
		if p.End != nil {
			return s, nil
		}
	}
}
