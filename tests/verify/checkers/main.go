// Check a stored history: `checkers register|lanes|facts FOLDER`.
//
// docs/verification.md describes the files of a history. The result is one line of JSON; the exit
// code is 1 if the history breaks a promise, and 2 if it cannot be read.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"sort"
)

const shownMax = 20

// Event is a line of history.jsonl: the beginning of an operation, or its end.
type Event struct {
	Client   int      `json:"client"`
	Op       int      `json:"op"`
	Event    string   `json:"event"` // invoke, ok, fail, unknown
	Call     string   `json:"call"`  // upload, door, line, query, delete, erase
	Identity string   `json:"identity"`
	Sha256   string   `json:"sha256"`
	Payload  string   `json:"payload"`
	Records  int      `json:"records"`
	Result   string   `json:"result"` // new, duplicate, stored; conflict, refused
	Time     int64    `json:"time"`
	From     int64    `json:"from"`
	To       int64    `json:"to"`
	Until    int64    `json:"until"`
	Seen     []string `json:"seen"`
	Reasons  []string `json:"reasons"`
}

// Operation is an invocation with its end; without one its outcome is unknown.
type Operation struct {
	Event
	Outcome string // ok, fail, unknown
	End     Event
}

// Fact is a line of state.jsonl: what the store and the table contain after the run.
type Fact struct {
	Kind     string `json:"kind"` // manifest, quarantine, tombstone, blob, version, row, gap
	Identity string `json:"identity"`
	Sha256   string `json:"sha256"`
	Blob     string `json:"blob"` // the sha256 of the bytes that were read; empty if there are none
	Agent    string `json:"agent"`
	Boot     string `json:"boot"`
	Seq      int64  `json:"seq"`
	Body     string `json:"body"`
	From     int64  `json:"from"`
	To       int64  `json:"to"`
	Time     int64  `json:"time"` // of the last write of a blob
}

// Meta is the part of meta.json that is checked.
type Meta struct {
	Faults    []string `json:"faults"`
	Unread    []string `json:"unread"`    // kinds of facts that could not be read after the run
	Compacted bool     `json:"compacted"` // the table was compacted after the last delete

	// The plan that was executed last names each blob without a record that is older.
	CollectedBefore int64 `json:"collected_before"`
}

type firing struct {
	Fault string `json:"fault"`
}

// History is a folder.
type History struct {
	Operations []*Operation
	State      []Fact
	Meta       Meta
	Firings    map[string]int
}

// Verdict is the output.
type Verdict struct {
	Checker    string   `json:"checker"`
	Operations int      `json:"operations"`
	Unknown    int      `json:"unknown"`
	Identities int      `json:"identities"`
	Answers    int      `json:"answers"`
	Excepted   int      `json:"excepted"` // records missing in answers that report such batches
	Broken     int      `json:"broken"`
	Violations []string `json:"violations"`
}

func (v *Verdict) add(format string, values ...any) {
	v.Broken++
	if len(v.Violations) < shownMax {
		v.Violations = append(v.Violations, fmt.Sprintf(format, values...))
	}
}

func fail(err error) {
	fmt.Fprintln(os.Stderr, "cannot check the history:", err)
	os.Exit(2)
}

func lines[T any](path string, each func(T) error) {
	file, err := os.Open(path)
	if err != nil {
		fail(err)
	}
	defer file.Close()
	scanner := bufio.NewScanner(file)
	scanner.Buffer(nil, 64<<20)
	for number := 1; scanner.Scan(); number++ {
		var value T
		err := json.Unmarshal(scanner.Bytes(), &value)
		if err == nil {
			err = each(value)
		}
		if err != nil {
			fail(fmt.Errorf("%s:%d: %w", path, number, err))
		}
	}
	if scanner.Err() != nil {
		fail(scanner.Err())
	}
}

func read(folder string) *History {
	found := &History{Firings: map[string]int{}}
	pending := map[int]*Operation{}
	known := map[int]bool{}
	lines(filepath.Join(folder, "history.jsonl"), func(event Event) error {
		if event.Event == "invoke" {
			if known[event.Op] {
				return fmt.Errorf("operation %d begins twice", event.Op)
			}
			known[event.Op] = true
			pending[event.Op] = &Operation{Event: event, Outcome: "unknown"}
			found.Operations = append(found.Operations, pending[event.Op])
			return nil
		}
		operation := pending[event.Op]
		if operation == nil {
			return fmt.Errorf("operation %d ends without a beginning", event.Op)
		}
		if event.Event != "ok" && event.Event != "fail" && event.Event != "unknown" {
			return fmt.Errorf("unknown event %q", event.Event)
		}
		operation.Outcome, operation.End = event.Event, event
		delete(pending, event.Op)
		return nil
	})
	lines(filepath.Join(folder, "state.jsonl"), func(fact Fact) error {
		found.State = append(found.State, fact)
		return nil
	})
	lines(filepath.Join(folder, "faults.jsonl"), func(one firing) error {
		found.Firings[one.Fault]++
		return nil
	})
	text, err := os.ReadFile(filepath.Join(folder, "meta.json"))
	if err == nil {
		err = json.Unmarshal(text, &found.Meta)
	}
	if err != nil {
		fail(err)
	}
	return found
}

func sortedKeys[V any](of map[string]V) []string {
	keys := make([]string, 0, len(of))
	for key := range of {
		keys = append(keys, key)
	}
	sort.Strings(keys)
	return keys
}

func main() {
	checks := map[string]func(*History, *Verdict){"register": checkRegister, "facts": checkFacts}
	if len(os.Args) != 3 || checks[os.Args[1]] == nil && os.Args[1] != "lanes" {
		fail(fmt.Errorf("usage: checkers register|lanes|facts FOLDER"))
	}
	verdict := Verdict{Checker: os.Args[1], Violations: []string{}}
	if os.Args[1] == "lanes" {
		checkLanes(os.Args[2], &verdict)
	} else {
		checkOperations(os.Args[2], checks[os.Args[1]], &verdict)
	}
	text, _ := json.Marshal(verdict)
	fmt.Println(string(text))
	if verdict.Broken > 0 {
		os.Exit(1)
	}
}

// checkOperations counts the operations of clients, and checks them.
func checkOperations(folder string, check func(*History, *Verdict), verdict *Verdict) {
	history := read(folder)
	identities := map[string]bool{}
	for _, operation := range history.Operations {
		verdict.Operations++
		if operation.Outcome == "unknown" {
			verdict.Unknown++
		}
		if operation.Call == "upload" {
			identities[operation.Identity] = true
		}
	}
	verdict.Identities = len(identities)
	check(history, verdict)
}
