package main

import (
	"fmt"
	"sort"
)

// readToItsEnd stands in a cut for the end of a segment, wherever that is.
const readToItsEnd = 1 << 62

// segments returns those of a stream to which somebody appends on a condition.
//
// The state is the next offset, and how many unseen events came. An event that may be there and that
// nobody saw may be in any segment, and may have come at any time. All of them do the same, so they
// come in the order of their calls, and where no seen event is: of N there are N cases to search and
// not 2 to the power of N.
func segments(calls []*call, s *stream) []*thing {
	var conditional []*call
	names := map[string]bool{}
	for _, c := range calls {
		if c.Operation != "write_if" || c.text("stream") != s.name {
			continue
		}
		conditional = append(conditional, c)
		expected := object(c.Arguments["expected"])
		if expected["position"] != nil {
			segment, _ := place(expected["position"])
			names[segment] = true
		}
		for segment := range object(expected["cut"]) {
			names[segment] = true
		}
	}
	if len(conditional) == 0 {
		return nil
	}
	for _, one := range s.events {
		if one.placed {
			names[one.segment] = true
		}
	}
	var unseen []*call
	for _, unit := range s.units(func(t *tried) bool { return !t.placed }) {
		for _, event := range unit {
			unseen = append(unseen, event.first())
		}
	}
	sort.SliceStable(unseen, func(a, b int) bool { return unseen[a].Began < unseen[b].Began })
	var found []*thing
	for _, segment := range sorted(names) {
		one := &thing{name: "segment " + s.name + "/" + segment, initial: tail(0, 0)}
		for _, unit := range s.units(func(t *tried) bool { return t.placed && t.segment == segment }) {
			one.append(unit, segment)
		}
		taken := map[int]bool{}
		for _, seen := range s.events {
			if seen.placed && seen.segment == segment {
				taken[seen.offset] = true
			}
		}
		for n, c := range unseen {
			one.add(c, c.Began, endless, func(state string) (string, bool) {
				next, came := parsed(state)
				return tail(next+1, n+1), came == n && !taken[next]
			})
		}
		here := keysIn(segment, s, calls)
		is := func(c *call, offset int) {
			one.add(c, c.Began, c.Ended, func(state string) (string, bool) {
				next, _ := parsed(state)
				return state, next == offset
			})
		}
		for _, c := range conditional {
			told := object(c.Value)
			if c.Error != "ConditionFailed" {
				continue
			}
			if c.Value == nil {
				expected := object(c.Arguments["expected"])["position"]
				if expected == nil || !all(c, here) {
					continue
				}
				if named, offset := place(expected); named == segment {
					one.add(c, c.Began, c.Ended, func(state string) (string, bool) {
						next, _ := parsed(state)
						return state, next != offset
					})
				}
				continue
			}
			if told["position"] != nil {
				actual, offset := place(told["position"])
				if actual != segment {
					continue
				}
				if wanted := object(c.Arguments["expected"])["position"]; wanted != nil {
					if was, at := place(wanted); was == segment && at == offset {
						one.broken = fmt.Sprintf("refused where it was expected: %s", describe(c))
					}
				}
				is(c, offset)
			} else if end, named := object(told["cut"])[segment]; named && number(end) != readToItsEnd {
				is(c, number(end))
			}
		}
		for _, r := range s.reads {
			end, named := r.to[segment]
			if named && number(end) != readToItsEnd && r.call.Arguments["to"] == nil {
				is(r.call, number(end))
			}
		}
		found = append(found, one)
	}
	return found
}

// keysIn returns the keys that are in a segment all the time, as far as the history shows it.
func keysIn(segment string, s *stream, calls []*call) map[string]bool {
	keys := map[string]bool{}
	for _, c := range calls {
		isScale := c.Operation == "scale" || c.Operation == "autoscale" || c.Operation == "maintain"
		isOfIt := c.Arguments["stream"] == nil || c.text("stream") == s.name
		if isScale && isOfIt && c.mayHaveHappened() {
			return keys
		}
	}
	for _, one := range s.events {
		if one.placed && one.segment == segment && one.key != nil {
			keys[text(one.key)] = true
		}
	}
	return keys
}

// all returns whether a call has events of these keys alone.
func all(c *call, keys map[string]bool) bool {
	for _, one := range list(c.Arguments["events"]) {
		key := list(one)[0]
		if key == nil || !keys[text(key)] {
			return false
		}
	}
	return true
}

func (t *thing) append(unit []*tried, segment string) {
	sort.Slice(unit, func(a, b int) bool { return unit[a].offset < unit[b].offset })
	first, c := unit[0], unit[0].first()
	for n, event := range unit {
		if event.offset != first.offset+n {
			t.broken = fmt.Sprintf("events of one call are not together: %s", describe(c))
		}
	}
	wanted := first.offset
	if c.Operation == "write_if" {
		expected := object(c.Arguments["expected"])
		if expected["position"] != nil {
			if named, offset := place(expected["position"]); named == segment {
				wanted = offset
			}
		}
		if offset, named := object(expected["cut"])[segment]; named {
			wanted = number(offset)
		}
	}
	fits, after := wanted == first.offset, first.offset+len(unit)
	t.add(c, c.Began, first.until(), func(state string) (string, bool) {
		next, came := parsed(state)
		return tail(after, came), fits && next == first.offset
	})
}

func tail(next, came int) string {
	return fmt.Sprintf("%d %d", next, came)
}

func parsed(state string) (next, came int) {
	if _, err := fmt.Sscan(state, &next, &came); err != nil {
		panic(err)
	}
	return next, came
}
