package main

import (
	"fmt"
	"slices"
)

// fences returns the fencing tokens; the state is the newest one, empty until somebody sets one.
func fences(calls []*call) []*thing {
	byStream := map[string]*thing{}
	for _, c := range calls {
		do, name := fence(c), c.text("stream")
		if do == nil {
			continue
		}
		if byStream[name] == nil {
			byStream[name] = &thing{name: "fence " + name}
		}
		byStream[name].add(c, c.Began, c.Ended, do)
	}
	var found []*thing
	for _, name := range sorted(byStream) {
		found = append(found, byStream[name])
	}
	return found
}

func fence(c *call) step {
	token, named := c.Arguments["token"]
	switch c.Operation {
	case "fencing_token":
		if c.ok() {
			return func(state string) (string, bool) { return state, state == text(c.Value) }
		}
	case "fence":
		expected, isConditional := c.Arguments["expected"]
		isConditional = isConditional && expected != nil
		if isConditional && (c.Error == "ConditionFailed" || c.Error == "FencingTokenMismatch") {
			return func(state string) (string, bool) { return state, state != text(expected) }
		}
		if c.mayHaveHappened() {
			return func(state string) (string, bool) {
				return text(token), !isConditional || state == text(expected)
			}
		}
	case "write", "write_if":
		if !named || token == nil {
			return nil
		}
		if c.ok() {
			return func(state string) (string, bool) { return state, state == text(token) }
		}
		if c.Error == "FencingTokenMismatch" {
			told, isTold := object(c.Value)["token"]
			return func(state string) (string, bool) {
				return state, state != text(token) && (!isTold || state == text(told))
			}
		}
	}
	return nil
}

// states returns the shared states; the state is the list of their updates. One of unknown outcome
// that no answer shows need not have happened; another one came where the longest answer has it.
func states(calls []*call) []*thing {
	byName := map[string]*thing{}
	for _, c := range calls {
		if c.Operation == "update_state" {
			name := c.text("state")
			byName[name] = &thing{name: "state " + name}
		}
	}
	longest := map[string][]any{}
	for _, c := range calls {
		isState := c.Operation == "update_state" || c.Operation == "fetch_updates"
		if known := c.Value; isState && c.ok() && len(list(known)) > len(longest[c.text("state")]) {
			longest[c.text("state")] = list(known)
		}
	}
	for _, c := range calls {
		one := byName[c.text("state")]
		if one == nil || !c.mayHaveHappened() {
			continue
		}
		before := list(c.Value)
		if !c.ok() {
			all := longest[c.text("state")]
			at := slices.Index(all, c.Arguments["update"])
			if at < 0 {
				continue
			}
			before = all[:at]
		}
		known := ""
		for _, update := range before {
			known += fmt.Sprintf("%q,", update)
		}
		switch c.Operation {
		case "fetch_updates":
			if c.ok() {
				one.add(c, c.Began, c.Ended, func(state string) (string, bool) { return state, state == known })
			}
		case "update_state":
			update := fmt.Sprintf("%q,", c.text("update"))
			one.add(c, c.Began, c.Ended, func(state string) (string, bool) {
				return state + update, state == known
			})
		}
	}
	var found []*thing
	for _, name := range sorted(byName) {
		found = append(found, byName[name])
	}
	return found
}
