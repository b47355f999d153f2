package main

import (
	"encoding/binary"
	"fmt"
	"sort"
)

// lists returns a stream as lists, one for each key, to several of which a transaction appends at
// once, and all of which a read shows. The state has four bytes for each list: its length.
//
// Each read shows a beginning of what the longest one shows of a key, or there is no order. What no
// read shows comes after that.
func lists(s *stream) *thing {
	one := &thing{name: "stream " + s.name}
	known := map[string][]string{}
	shown := make([]map[string]int, len(s.reads))
	for n, r := range s.reads {
		if !r.whole {
			continue
		}
		found := map[string][]string{}
		for _, event := range r.seen {
			lane := laneOf(event.key, event.segment)
			found[lane] = append(found[lane], event.event)
		}
		shown[n] = map[string]int{}
		for lane, events := range found {
			shown[n][lane] = len(events)
			for m := 0; m < len(events) && m < len(known[lane]); m++ {
				if events[m] != known[lane][m] {
					one.broken = fmt.Sprintf("%s has two orders: %q and %q", lane, events[m], known[lane][m])
				}
			}
			if len(events) > len(known[lane]) {
				known[lane] = events
			}
		}
	}
	index := map[string]int{}
	for lane, events := range known {
		for n, event := range events {
			index[lane+"\x00"+event] = n + 1
		}
	}
	places := map[string]int{}
	at := func(lane string) int {
		if _, is := places[lane]; !is {
			places[lane] = 4 * len(places)
		}
		return places[lane]
	}
	type extended struct{ at, index, known int }
	for _, unit := range s.unitsByName() {
		var appended []extended
		for _, event := range unit {
			lane := laneOf(event.tried.key, event.tried.segment)
			number := index[lane+"\x00"+event.name]
			if number == 0 && event.tried.key == nil {
				continue
			}
			appended = append(appended, extended{at(lane), number, len(known[lane])})
		}
		if len(appended) == 0 {
			continue
		}
		sort.SliceStable(appended, func(a, b int) bool {
			if (appended[a].index == 0) != (appended[b].index == 0) {
				return appended[b].index == 0
			}
			return appended[a].index < appended[b].index
		})
		first, until := unit[0].tried.first(), endless
		for _, event := range unit {
			until = min(until, event.tried.until())
		}
		one.add(first, first.Began, until, func(state string) (string, bool) {
			after := []byte(state)
			for _, one := range appended {
				length := int(binary.BigEndian.Uint32(after[one.at:]))
				if one.index > 0 && length != one.index-1 || one.index == 0 && length < one.known {
					return state, false
				}
				binary.BigEndian.PutUint32(after[one.at:], uint32(length+1))
			}
			return string(after), true
		})
	}
	for n, r := range s.reads {
		if !r.whole {
			continue
		}
		for lane := range shown[n] {
			at(lane)
		}
		lengths := shown[n]
		one.add(r.call, r.call.Began, r.call.Ended, func(state string) (string, bool) {
			for lane, at := range places {
				if int(binary.BigEndian.Uint32([]byte(state[at:at+4]))) != lengths[lane] {
					return state, false
				}
			}
			return state, true
		})
	}
	one.initial = string(make([]byte, 4*len(places)))
	return one
}

// laneOf returns what has an order: a key, or a segment for events without one.
func laneOf(key any, segment string) string {
	if key == nil {
		return "segment " + segment
	}
	return "key " + text(key)
}

type named struct {
	name  string
	tried *tried
}

func (s *stream) unitsByName() [][]named {
	numbers := map[string]int{}
	var found [][]named
	for _, event := range s.order {
		one := s.events[event]
		if one.first() == nil {
			continue
		}
		n, is := numbers[one.unit]
		if !is {
			n = len(found)
			numbers[one.unit] = n
			found = append(found, nil)
		}
		found[n] = append(found[n], named{event, one})
	}
	return found
}
