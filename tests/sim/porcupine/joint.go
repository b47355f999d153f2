package main

import (
	"sort"
	"strings"
)

// joint returns the transactions over several streams of a history as one object.
//
// A transaction is decided, then applied in each of its streams in the order of the decisions. The
// state is the decisions in their order; behind a line for each stream, as many marks as it shows.
func joint(calls []*call, streams map[string]*stream) []*thing {
	parts := map[string][]string{}
	for _, c := range calls {
		if of := object(c.Arguments["streams"]); c.Operation == "stage" && len(of) > 1 {
			parts[c.text("transaction")] = sorted(of)
		}
	}
	names := sorted(streams)
	number := map[string]int{}
	for n, name := range names {
		number[name] = n + 1
	}
	one := &thing{name: "joint transactions", initial: strings.Repeat("\n", len(names))}
	touching := func(decided string, name string) []string {
		var found []string
		for _, transaction := range strings.Split(decided, ",") {
			for _, part := range parts[transaction] {
				if part == name {
					found = append(found, transaction)
				}
			}
		}
		return found
	}
	type showing struct {
		of   string
		call *call
		all  map[string]bool
	}
	var shown []showing
	ever := map[string]bool{}
	for _, name := range names {
		for _, r := range streams[name].reads {
			if !r.whole {
				continue
			}
			found := map[string]bool{}
			for _, event := range r.seen {
				if t := streams[name].events[event.event]; t != nil && parts[t.transaction] != nil {
					found[t.transaction], ever[t.transaction] = true, true
				}
			}
			shown = append(shown, showing{name, r.call, found})
		}
	}
	earlier := map[string]map[string]bool{} // those that a stream shows before it shows this one
	for _, some := range shown {
		for _, more := range shown {
			if some.of != more.of || !within(some.all, more.all) {
				continue
			}
			for transaction := range more.all {
				if !some.all[transaction] {
					if earlier[transaction] == nil {
						earlier[transaction] = map[string]bool{}
					}
					for before := range some.all {
						earlier[transaction][before] = true
					}
				}
			}
		}
	}
	for _, name := range names {
		var placed []*tried
		for _, event := range streams[name].order {
			if t := streams[name].events[event]; t.placed && parts[t.transaction] != nil {
				placed = append(placed, t)
				ever[t.transaction] = true // somebody saw a part of it, if only a group
			}
		}
		sort.Slice(placed, func(a, b int) bool {
			if placed[a].segment != placed[b].segment {
				return placed[a].segment < placed[b].segment
			}
			return placed[a].offset < placed[b].offset
		})
		for n := 1; n < len(placed); n++ {
			before, after := placed[n-1], placed[n]
			if before.segment == after.segment && before.transaction != after.transaction {
				if earlier[after.transaction] == nil {
					earlier[after.transaction] = map[string]bool{}
				}
				earlier[after.transaction][before.transaction] = true
			}
		}
	}
	done := map[string]bool{}
	for _, c := range calls {
		transaction := c.text("transaction")
		if c.Operation != "commit" || parts[transaction] == nil || !c.mayHaveHappened() || done[transaction] {
			continue
		}
		done[transaction] = true
		if !c.ok() && !ever[transaction] {
			continue // it never happened, or after everything else
		}
		one.add(c, c.Began, c.Ended, func(state string) (string, bool) {
			lines := strings.Split(state, "\n")
			decided := map[string]bool{}
			for _, before := range strings.Split(lines[0], ",") {
				decided[before] = true
			}
			if !within(earlier[transaction], decided) {
				return state, false
			}
			lines[0] += transaction + ","
			return strings.Join(lines, "\n"), true
		})
		visible := c.Ended
		if wait, given := c.Arguments["wait"].(bool); given && !wait {
			visible = endless
		}
		for _, name := range parts[transaction] {
			one.add(c, c.Began, visible, func(state string) (string, bool) {
				lines := strings.Split(state, "\n")
				mine, applied := touching(lines[0], name), len(lines[number[name]])
				if applied >= len(mine) || mine[applied] != transaction {
					return state, false
				}
				lines[number[name]] += "+"
				return strings.Join(lines, "\n"), true
			})
		}
	}
	if len(one.operations) == 0 {
		return nil
	}
	for _, read := range shown {
		one.add(read.call, read.call.Began, read.call.Ended, func(state string) (string, bool) {
			lines := strings.Split(state, "\n")
			mine, applied := touching(lines[0], read.of), len(lines[number[read.of]])
			if applied != len(read.all) {
				return state, false
			}
			for _, transaction := range mine[:applied] {
				if !read.all[transaction] {
					return state, false
				}
			}
			return state, true
		})
	}
	return []*thing{one}
}

func within(some, more map[string]bool) bool {
	for one := range some {
		if !more[one] {
			return false
		}
	}
	return true
}
