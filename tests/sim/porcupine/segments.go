package main

import (
	"fmt"
	"sort"
	"strconv"
)

// segments returns those of a stream to which somebody appends on a condition.
//
// The state is the next offset. An event that may be there and that nobody saw may be in any
// segment, and may have come at any time.
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
	var found []*thing
	for _, segment := range sorted(names) {
		one := &thing{name: "segment " + s.name + "/" + segment, initial: "0"}
		for _, unit := range s.units(func(t *tried) bool { return t.placed && t.segment == segment }) {
			one.append(unit, segment)
		}
		for _, unit := range s.units(func(t *tried) bool { return !t.placed }) {
			for _, event := range unit {
				one.add(event.first(), event.first().Began, endless, func(state string) (string, bool) {
					next, _ := strconv.Atoi(state)
					return strconv.Itoa(next + 1), true
				})
			}
		}
		is := func(c *call, offset int) {
			one.add(c, c.Began, c.Ended, func(state string) (string, bool) { return state, state == strconv.Itoa(offset) })
		}
		for _, c := range conditional {
			told := object(c.Value)
			if c.Error != "ConditionFailed" || told == nil {
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
			} else if tail, named := object(told["cut"])[segment]; named {
				is(c, number(tail))
			}
		}
		for _, r := range s.reads {
			if end, named := r.to[segment]; named && r.call.Arguments["to"] == nil {
				is(r.call, number(end))
			}
		}
		found = append(found, one)
	}
	return found
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
	before, after := strconv.Itoa(first.offset), strconv.Itoa(first.offset+len(unit))
	fits := wanted == first.offset
	t.add(c, c.Began, first.until(), func(state string) (string, bool) { return after, fits && state == before })
}
