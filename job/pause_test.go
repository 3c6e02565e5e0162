package job_test

import (
	"maps"
	"testing"

	"github.com/delaybridge/delaybridge/job"
)

func TestPausesMergeToTheSame(t *testing.T) {
	a := job.Pauses{"x": {Paused: true, At: 1}, "y": {Paused: false, At: 5}, "z": {Paused: true, At: 3}}
	b := job.Pauses{"x": {Paused: false, At: 2}, "y": {Paused: true, At: 4}, "z": {Paused: false, At: 3}, "w": {Paused: true, At: 9}}
	want := job.Pauses{"x": {At: 2}, "y": {At: 5}, "z": {Paused: true, At: 3}, "w": {Paused: true, At: 9}}
	ab, ba := maps.Clone(a), maps.Clone(b)
	if !ab.Merge(b) || !ba.Merge(a) || !maps.Equal(ab, want) || !maps.Equal(ba, want) {
		t.Errorf("%v and %v, want %v both", ab, ba, want)
	}
	if ab.Merge(b) || ab.Merge(a) {
		t.Error("what is known already counts as a change")
	}
}
