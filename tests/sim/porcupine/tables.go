package main

import (
	"encoding/binary"
	"fmt"
	"sort"
)

// tables returns the tables, in parts whose keys no get and no update joins. A scan is a fresh get of
// all keys of each part.
//
// The state has four bytes for each key: the number of its value, 0 if it has none. A value is
// written once to a key, so a value has one version.
func tables(calls []*call) ([]*thing, error) {
	var found []*thing
	byTable := map[string][]*call{}
	for _, c := range calls {
		if c.Operation == "update" || c.Operation == "get" || c.Operation == "scan" {
			byTable[c.text("table")] = append(byTable[c.text("table")], c)
		}
	}
	for _, name := range sorted(byTable) {
		parts, err := table(name, byTable[name])
		if err != nil {
			return nil, err
		}
		found = append(found, parts...)
	}
	return found, nil
}

type pair struct{ key, value string }

type entries struct {
	numbers  map[pair]uint32
	versions map[string]map[uint32]string // of a key, by the value's number
}

func table(name string, calls []*call) ([]*thing, error) {
	known := entries{map[pair]uint32{}, map[string]map[uint32]string{}}
	written := map[pair]bool{}
	broken := ""
	learn := func(c *call, key string, value any, version any) {
		if value == nil {
			return
		}
		p := pair{key, text(value)}
		if _, is := known.numbers[p]; !is {
			known.numbers[p] = uint32(len(known.numbers) + 1)
		}
		if version == nil {
			return
		}
		if known.versions[key] == nil {
			known.versions[key] = map[uint32]string{}
		}
		said := fmt.Sprint(version)
		before, is := known.versions[key][known.numbers[p]]
		if is && before != said {
			broken = fmt.Sprintf("%q of %q has the versions %s and %s", p.value, key, before, said)
		}
		known.versions[key][known.numbers[p]] = said
	}
	joined := map[string]string{}
	var root func(key string) string
	root = func(key string) string {
		if up, is := joined[key]; is && up != key {
			joined[key] = root(up)
			return joined[key]
		}
		joined[key] = key
		return key
	}
	for _, c := range calls {
		keys := keysOf(c)
		for _, key := range keys {
			joined[root(key)] = root(keys[0])
		}
		if c.Operation == "update" && c.mayHaveHappened() {
			versions := list(c.Value)
			for n, change := range list(c.Arguments["changes"]) {
				key, value := text(object(change)["key"]), object(change)["value"]
				if value != nil {
					p := pair{key, text(value)}
					if written[p] {
						return nil, fmt.Errorf("%q was written twice to %q of table %s", p.value, key, name)
					}
					written[p] = true
				}
				var version any
				if c.ok() {
					version = versions[n]
				}
				learn(c, key, value, version)
			}
		}
		if c.Operation == "get" && c.ok() {
			for n, entry := range list(c.Value) {
				if entry != nil {
					learn(c, keys[n], list(entry)[0], list(entry)[1])
				}
			}
		}
	}
	for _, c := range calls {
		if c.Operation == "scan" && c.ok() {
			for key, entry := range object(c.Value) {
				root(key)
				learn(c, key, list(entry)[0], list(entry)[1])
			}
		}
	}
	groups := map[string][]string{}
	for key := range joined {
		groups[root(key)] = append(groups[root(key)], key)
	}
	var found []*thing
	for _, first := range sorted(groups) {
		keys := groups[first]
		sort.Strings(keys)
		places := map[string]int{}
		for n, key := range keys {
			places[key] = 4 * n
		}
		part := &thing{name: "table " + name, initial: string(make([]byte, 4*len(keys))), broken: broken}
		if len(groups) > 1 {
			part.name += fmt.Sprintf(" %v", keys)
		}
		for _, c := range calls {
			if c.Operation == "scan" && c.ok() {
				found := make([]any, len(keys))
				for n, key := range keys {
					found[n] = object(c.Value)[key]
				}
				part.add(c, c.Began, c.Ended, known.shows(keys, found, places))
				continue
			}
			of := keysOf(c)
			if len(of) == 0 || root(of[0]) != first {
				continue
			}
			if do := known.step(c, places); do != nil {
				part.add(c, c.Began, c.Ended, do)
			}
		}
		found = append(found, part)
	}
	return found, nil
}

func keysOf(c *call) []string {
	var keys []string
	for _, key := range list(c.Arguments["keys"]) {
		keys = append(keys, text(key))
	}
	for _, change := range list(c.Arguments["changes"]) {
		keys = append(keys, text(object(change)["key"]))
	}
	return keys
}

func (known entries) step(c *call, places map[string]int) step {
	if c.Operation == "get" {
		fresh, _ := c.Arguments["fresh"].(bool)
		if !c.ok() || !fresh {
			return nil
		}
		return known.shows(keysOf(c), list(c.Value), places)
	}
	refused := c.Outcome == "fail"
	if refused && c.Error != "BadKeyVersion" && c.Error != "NoSuchKey" {
		return nil
	}
	return known.update(c, places, refused)
}

func (known entries) shows(keys []string, found []any, places map[string]int) step {
	return func(state string) (string, bool) {
		for n, key := range keys {
			wanted := uint32(0)
			if found[n] != nil {
				wanted = known.numbers[pair{key, text(list(found[n])[0])}]
			}
			if valueAt(state, places[key]) != wanted {
				return state, false
			}
		}
		return state, true
	}
}

func (known entries) update(c *call, places map[string]int, refused bool) step {
	changes := list(c.Arguments["changes"])
	return func(state string) (string, bool) {
		met, certain := true, true
		for _, change := range changes {
			key, expected := text(object(change)["key"]), object(change)["expected"]
			value := valueAt(state, places[key])
			switch expected {
			case nil:
			case "absent":
				met = met && value == 0
			default:
				version, is := known.versions[key][value]
				if value != 0 && !is && !known.has(key, fmt.Sprint(expected)) {
					certain = false // only a refusal can have shown the version of an unknown update
				} else {
					met = met && value != 0 && is && version == fmt.Sprint(expected)
				}
			}
		}
		if refused {
			return state, !met || !certain
		}
		if !met {
			return state, false
		}
		after := []byte(state)
		for _, change := range changes {
			key, value := text(object(change)["key"]), object(change)["value"]
			number := uint32(0)
			if value != nil {
				number = known.numbers[pair{key, text(value)}]
			}
			binary.BigEndian.PutUint32(after[places[key]:], number)
		}
		return string(after), true
	}
}

func (known entries) has(key string, version string) bool {
	for _, other := range known.versions[key] {
		if other == version {
			return true
		}
	}
	return false
}

func valueAt(state string, at int) uint32 {
	return binary.BigEndian.Uint32([]byte(state[at : at+4]))
}
