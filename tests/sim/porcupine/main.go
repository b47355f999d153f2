// Command porcupine checks histories of the package with Porcupine, a checker of linearizability.
//
// It reads the histories that it is given, prints one JSON line for each, and ends with 1 unless all
// are linearizable. With -pictures it draws each object that is not, as a page for a browser.
package main

import (
	"compress/gzip"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/anishathalye/porcupine"
)

// A step returns the state after a call, and whether the object would have answered so.
type step func(state string) (string, bool)

// A thing is what calls share: some keys of a table, a segment, a fence, a state, a stream.
type thing struct {
	name       string
	initial    string
	operations []porcupine.Operation
	broken     string // why no order can explain the answers, found without a search
}

// over is the state behind the last line: what has had no effect by then had none.
const over = "\xffover"

// add adds a call; one that is open to the end may have had no effect.
func (t *thing) add(c *call, began, ended int64, do step) {
	if ended == endless {
		certain := do
		do = func(state string) (string, bool) {
			if state == over {
				return state, true
			}
			return certain(state)
		}
	}
	t.operations = append(t.operations, porcupine.Operation{
		ClientId: len(t.operations), Input: do, Call: began, Return: ended, Metadata: describe(c),
	})
}

func describe(c *call) string {
	arguments, _ := json.Marshal(c.Arguments)
	value, _ := json.Marshal(c.Value)
	return fmt.Sprintf("%s %s %s: %s %s%s", c.Process, c.Operation, arguments, c.Outcome, c.Error, value)
}

func (t *thing) model() porcupine.Model {
	return porcupine.Model{
		Init: func() any { return t.initial },
		Step: func(state, input, _ any) (bool, any) {
			after, fits := input.(step)(state.(string))
			return fits, after
		},
		DescribeOperation:         func(_, _ any) string { return "" },
		DescribeOperationMetadata: func(info any) string { return fmt.Sprint(info) },
	}
}

type judged struct {
	Name       string  `json:"name"`
	Operations int     `json:"operations"`
	Result     string  `json:"result"`
	Why        string  `json:"why,omitempty"`
	Ms         float64 `json:"ms"`
}

type report struct {
	History string   `json:"history"`
	Result  string   `json:"result"`
	Objects []judged `json:"objects"`
	Error   string   `json:"error,omitempty"`
}

func check(path string, limit time.Duration, pictures string) report {
	done := report{History: path, Result: "ok", Objects: []judged{}}
	file, err := os.Open(path)
	if err == nil {
		defer file.Close()
	}
	var calls []*call
	var reader io.Reader = file
	if err == nil && strings.HasSuffix(path, ".gz") {
		reader, err = gzip.NewReader(file)
	}
	if err == nil {
		calls, err = readHistory(reader)
	}
	var things []*thing
	if err == nil {
		things, err = thingsOf(calls)
	}
	if err != nil {
		done.Result, done.Error = "bad", err.Error()
		return done
	}
	for _, one := range things {
		began := time.Now()
		result := porcupine.CheckResult(porcupine.Illegal)
		var info porcupine.LinearizationInfo
		if one.broken == "" {
			one.operations = append(one.operations, porcupine.Operation{
				ClientId: len(one.operations), Call: endless - 2, Return: endless - 1, Metadata: "the end",
				Input: step(func(string) (string, bool) { return over, true }),
			})
			result, info = porcupine.CheckOperationsVerbose(one.model(), one.operations, limit)
		}
		verdict := judged{one.name, len(one.operations), "ok", one.broken, float64(time.Since(began).Microseconds()) / 1000}
		switch result {
		case porcupine.Illegal:
			verdict.Result, done.Result = "illegal", "illegal"
			if pictures != "" && one.broken == "" {
				name := strings.NewReplacer("/", "-", " ", "-").Replace(filepath.Base(path) + "-" + one.name)
				if err := porcupine.VisualizePath(one.model(), info, filepath.Join(pictures, name+".html")); err != nil {
					verdict.Why = err.Error()
				}
			}
		case porcupine.Unknown:
			verdict.Result = "unjudged"
			if done.Result == "ok" {
				done.Result = "unjudged"
			}
		}
		done.Objects = append(done.Objects, verdict)
	}
	return done
}

func thingsOf(calls []*call) ([]*thing, error) {
	things, err := tables(calls)
	if err != nil {
		return nil, err
	}
	things = append(things, fences(calls)...)
	things = append(things, states(calls)...)
	streams := streamsOf(calls)
	for _, name := range sorted(streams) {
		things = append(things, segments(calls, streams[name])...)
		things = append(things, lists(streams[name]))
	}
	return append(things, joint(calls, streams)...), nil
}

func main() {
	limit := flag.Duration("limit", time.Minute, "how long to search for one object of a history")
	pictures := flag.String("pictures", "", "a folder for pictures of what is not linearizable")
	flag.Parse()
	code := 0
	printed := json.NewEncoder(os.Stdout)
	for _, path := range flag.Args() {
		done := check(path, *limit, *pictures)
		if done.Result != "ok" {
			code = 1
		}
		if err := printed.Encode(done); err != nil {
			panic(err)
		}
	}
	os.Exit(code)
}
