package job

import (
	"fmt"
	"slices"
	"sync"
	"testing"
)

func TestNewIDNamesItsShard(t *testing.T) {
	seen := map[string]bool{}
	for shard := range uint16(MaxShards) {
		id := NewID(shard)
		if got, ok := IDShard(id); !ok || got != shard {
			t.Fatalf("IDShard(%q) = %d, %v, want %d, true", id, got, ok, shard)
		}
		if seen[id[2:]] {
			t.Fatalf("the random part of %q was minted before", id)
		}
		seen[id[2:]] = true
	}
}

func TestIDShardOfOtherForms(t *testing.T) {
	for _, id := range []string{"", "0", "00abcdefghi", "00abcdefghijk", "00abcde.ghij", "00abcdefghi\x00", "\xff0abcdefghij", "00abcdefghi "} {
		if shard, ok := IDShard(id); ok || shard != 0 {
			t.Errorf("IDShard(%q) = %d, %v, want 0, false", id, shard, ok)
		}
	}
}

func TestNextIncarnationRisesAcrossGoroutines(t *testing.T) {
	var (
		wg  sync.WaitGroup
		got [4][]uint64
	)
	for g := range got {
		wg.Go(func() {
			for range 2000 {
				got[g] = append(got[g], NextIncarnation())
			}
		})
	}
	wg.Wait()
	var all []uint64
	for _, one := range got {
		if !slices.IsSorted(one) {
			t.Error("incarnations of one goroutine do not rise")
		}
		all = append(all, one...)
	}
	slices.Sort(all)
	if n := len(slices.Compact(slices.Clone(all))); n != len(all) {
		t.Errorf("%d incarnations of %d are distinct", n, len(all))
	}
}

func BenchmarkNewID(b *testing.B) {
	for b.Loop() {
		NewID(7)
	}
}

func BenchmarkNextIncarnation(b *testing.B) {
	for b.Loop() {
		NextIncarnation()
	}
}

func TestChosenIDsRarelyLookGenerated(t *testing.T) {
	hits := 0
	for i := range 100_000 {
		if _, ok := IDShard(fmt.Sprintf("order-%06d", i)); ok {
			hits++
		}
	}
	if hits > 100_000/32 {
		t.Errorf("%d of 100,000 ids of one family look generated, want about one in 64", hits)
	}
}
