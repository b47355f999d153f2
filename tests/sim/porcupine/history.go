package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"math"
)

// A call of a history, as docs/histories.md describes it. Lines are the order of everything.
type call struct {
	Process   string
	Operation string
	Arguments map[string]any
	Began     int64
	Ended     int64 // endless if its outcome is unknown
	Outcome   string
	Error     string
	Value     any
}

const endless = int64(math.MaxInt64)

func (c *call) ok() bool              { return c.Outcome == "ok" }
func (c *call) mayHaveHappened() bool { return c.Outcome != "fail" }
func (c *call) text(name string) string {
	text, _ := c.Arguments[name].(string)
	return text
}

type line struct {
	History   int            `json:"history"`
	Step      int64          `json:"step"`
	Call      int64          `json:"call"`
	Type      string         `json:"type"`
	Process   string         `json:"process"`
	Operation string         `json:"operation"`
	Arguments map[string]any `json:"arguments"`
	Value     any            `json:"value"`
	Error     string         `json:"error"`
}

func readHistory(reader io.Reader) ([]*call, error) {
	scanner := bufio.NewScanner(reader)
	scanner.Buffer(nil, 1<<28)
	var calls []*call
	byNumber := map[int64]*call{}
	at := int64(0)
	for scanner.Scan() {
		at++
		var l line
		if err := json.Unmarshal(scanner.Bytes(), &l); err != nil {
			return nil, fmt.Errorf("line %d is no JSON object: %w", at, err)
		}
		if at == 1 {
			if l.History != 1 {
				return nil, fmt.Errorf("line 1 is not the beginning of a history of format 1")
			}
			continue
		}
		if l.Type == "invoke" {
			c := &call{Process: l.Process, Operation: l.Operation, Arguments: l.Arguments, Began: at, Ended: endless, Outcome: "info"}
			byNumber[l.Call] = c
			calls = append(calls, c)
			continue
		}
		c := byNumber[l.Call]
		if c == nil {
			return nil, fmt.Errorf("line %d: call %d is not open", at, l.Call)
		}
		delete(byNumber, l.Call)
		c.Outcome, c.Value, c.Error = l.Type, l.Value, l.Error
		if l.Type != "info" {
			c.Ended = at
		}
	}
	if at == 0 {
		return nil, fmt.Errorf("line 1 is not the beginning of a history of format 1")
	}
	return calls, scanner.Err()
}

func list(value any) []any {
	found, _ := value.([]any)
	return found
}

func object(value any) map[string]any {
	found, _ := value.(map[string]any)
	return found
}

func text(value any) string {
	found, _ := value.(string)
	return found
}

func number(value any) int {
	found, _ := value.(float64)
	return int(found)
}

// place returns a position with its segment as a text, as cuts have it.
func place(value any) (string, int) {
	pair := list(value)
	segment, isText := pair[0].(string)
	if !isText {
		segment = fmt.Sprint(number(pair[0]))
	}
	return segment, number(pair[1])
}
