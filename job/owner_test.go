package job

import "testing"

func TestOwner(t *testing.T) {
	for owner, want := range map[string][2]string{
		"b1":      {"b1", ""},
		"b1/w1":   {"b1", "w1"},
		"b_1/w-1": {"b_1", "w-1"},
	} {
		bridge, worker := SplitOwner(owner)
		if bridge != want[0] || worker != want[1] {
			t.Errorf("SplitOwner(%q) = %q, %q, want %q", owner, bridge, worker, want)
		}
		if got := OwnerOf(bridge, worker); got != owner {
			t.Errorf("OwnerOf(%q, %q) = %q, want %q", bridge, worker, got, owner)
		}
	}
}
