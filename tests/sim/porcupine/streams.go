package main

import (
	"fmt"
	"sort"
)

func sorted[V any](m map[string]V) []string {
	keys := make([]string, 0, len(m))
	for key := range m {
		keys = append(keys, key)
	}
	sort.Strings(keys)
	return keys
}

// An event that somebody tried to write, by a call or by a transaction, and where it is.
type tried struct {
	key         any // nil of an event without a key
	unit        string
	calls       []*call
	transaction string
	segment     string
	offset      int
	placed      bool
}

// until returns when one of the calls made the event visible.
func (t *tried) until() int64 {
	ended := endless
	for _, c := range t.calls {
		wait, given := c.Arguments["wait"].(bool)
		if c.ok() && (!given || wait) && c.Ended < ended {
			ended = c.Ended
		}
	}
	return ended
}

// first returns the first call that may have put the event into its stream.
func (t *tried) first() *call {
	for _, c := range t.calls {
		if c.mayHaveHappened() {
			return c
		}
	}
	return nil
}

type seen struct {
	segment string
	offset  int
	key     any
	event   string
}

type read struct {
	call  *call
	seen  []seen
	from  map[string]any
	to    map[string]any
	whole bool
}

type stream struct {
	name   string
	events map[string]*tried
	order  []string // of events, as they were first tried
	reads  []*read
}

func streamsOf(calls []*call) map[string]*stream {
	found := map[string]*stream{}
	get := func(name string) *stream {
		if found[name] == nil {
			found[name] = &stream{name: name, events: map[string]*tried{}}
		}
		return found[name]
	}
	commits := map[string][]*call{}
	later := map[string]map[string]bool{} // segments of a stream that have predecessors
	for _, c := range calls {
		switch c.Operation {
		case "commit":
			commits[c.text("transaction")] = append(commits[c.text("transaction")], c)
		case "layout":
			later[c.text("stream")] = map[string]bool{}
			for segment, before := range object(c.Value) {
				later[c.text("stream")][segment] = len(list(before)) > 0
			}
		}
	}
	for n, c := range calls {
		switch c.Operation {
		case "write", "write_if":
			s := get(c.text("stream"))
			for m, one := range list(c.Arguments["events"]) {
				event := text(list(one)[1])
				if s.events[event] == nil {
					s.events[event] = &tried{key: list(one)[0], unit: fmt.Sprint(n)}
					s.order = append(s.order, event)
				}
				s.events[event].calls = append(s.events[event].calls, c)
				if c.ok() {
					s.put(event, list(c.Value)[m])
				}
			}
		case "stage":
			transaction := c.text("transaction")
			for name, events := range object(c.Arguments["streams"]) {
				s := get(name)
				for _, one := range list(events) {
					event := text(list(one)[1])
					s.events[event] = &tried{
						key: list(one)[0], unit: fmt.Sprint(n), calls: commits[transaction], transaction: transaction,
					}
					s.order = append(s.order, event)
				}
			}
		}
	}
	for _, c := range calls {
		value := object(c.Value)
		switch {
		case c.Operation == "read" && c.ok():
			s := get(c.text("stream"))
			r := &read{call: c, from: object(value["from"]), to: object(value["to"]), whole: c.Arguments["to"] == nil}
			for segment, offset := range r.from {
				r.whole = r.whole && number(offset) == 0 && !later[s.name][segment]
			}
			for _, one := range list(value["events"]) {
				segment, offset := place(list(one)[:2])
				r.seen = append(r.seen, seen{segment, offset, list(one)[2], text(list(one)[3])})
				s.put(text(list(one)[3]), one)
			}
			s.reads = append(s.reads, r)
		case c.Operation == "next" && c.ok() && value["event"] != nil:
			get(text(value["stream"])).put(text(value["event"]), value["position"])
		}
	}
	return found
}

func (s *stream) put(event string, position any) {
	if one := s.events[event]; one != nil && position != nil {
		one.segment, one.offset = place(position)
		one.placed = true
	}
}

// units returns events by the call, or the transaction, that they belong to, in order.
func (s *stream) units(belongs func(*tried) bool) [][]*tried {
	numbers := map[string]int{}
	var found [][]*tried
	for _, event := range s.order {
		one := s.events[event]
		if one.first() == nil || !belongs(one) {
			continue
		}
		n, is := numbers[one.unit]
		if !is {
			n = len(found)
			numbers[one.unit] = n
			found = append(found, nil)
		}
		found[n] = append(found[n], one)
	}
	return found
}
