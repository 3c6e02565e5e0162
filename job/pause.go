package job

// Pauses says which targets, or patterns of them, are paused: the newest word on
// each. What is not paused any more is remembered too, so that it can be told to
// those who know only of the pause.
type Pauses map[string]Pause

// Pause is one word on a pattern.
type Pause struct {
	Paused bool `json:"paused"`
	At     Time `json:"at"` // when it was said
}

// Merge takes in what o knows better, and reports whether that was anything.
func (p Pauses) Merge(o Pauses) (changed bool) {
	for pattern, said := range o {
		if was, known := p[pattern]; !known || said.newer(was) {
			p[pattern], changed = said, true
		}
	}
	return changed
}

// newer reports whether s overrules o. Of two at one instant the pause does.
func (s Pause) newer(o Pause) bool {
	return s.At > o.At || s.At == o.At && s.Paused && !o.Paused
}
