package main

import (
	"bytes"
	"encoding/base64"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"math"
	"os"
	"path/filepath"
	"strings"

	"github.com/anishathalye/porcupine"
)

// Access is a line of registers.jsonl: the beginning of a request for a register, or its end.
type Access struct {
	Op       int    `json:"op"`
	Event    string `json:"event"` // invoke, ok
	Time     int64  `json:"time"`
	Call     string `json:"call"` // read, write, harm
	Register string `json:"register"`
	Expected string `json:"expected"` // the state that a write replaces; empty for none
	Sha256   string `json:"sha256"`   // the state that is written or was read; empty for none
	Body     string `json:"body"`     // its bytes in base64, where they occur first
	Result   string `json:"result"`   // read, absent; applied, differs
}

// The register of a lane is changed by compare-and-swap: its state is the sha256 of its bytes, or
// empty. A write with an unknown outcome returns at the end of the history; it is applied if its
// place in the order is in the state that it replaces.
var lane = porcupine.Model{
	Init: func() any { return "" },
	Step: func(state, input, output any) (bool, any) {
		in, out := input.(*Access), output.(*Access)
		switch {
		case in.Call == "read":
			return out == nil || state == out.Sha256, state
		case in.Call == "harm":
			return true, in.Sha256
		case out == nil:
			if state == in.Expected {
				return true, in.Sha256
			}
			return true, state
		case out.Result == "applied":
			return state == in.Expected || in.Expected == "unconditional", in.Sha256
		default:
			return state != in.Expected, state
		}
	},
}

// checkLanes checks the order of the requests of each register, and each state that was written.
func checkLanes(folder string, verdict *Verdict) {
	path := filepath.Join(folder, "registers.jsonl")
	if _, err := os.Stat(path); os.IsNotExist(err) { // a directory has no server whose requests are seen
		return
	}
	begun, ended, bodies, order := map[int]*Access{}, map[int]*Access{}, map[string][]byte{}, []int{}
	lines(path, func(one Access) error {
		if one.Body != "" {
			body, err := base64.StdEncoding.DecodeString(one.Body)
			if err != nil {
				return err
			}
			bodies[one.Sha256] = body
		}
		if one.Event == "invoke" {
			begun[one.Op] = &one
			order = append(order, one.Op)
		} else {
			ended[one.Op] = &one
		}
		return nil
	})
	partitions, harmed := map[string][]porcupine.Operation{}, map[string]bool{}
	for _, op := range order {
		in, out := begun[op], ended[op]
		verdict.Operations++
		operation := porcupine.Operation{Input: in, Output: out, Call: in.Time, Return: math.MaxInt64}
		switch {
		case in.Call == "harm":
			harmed[in.Sha256] = true
		case out != nil:
			operation.Return = out.Time
		default:
			verdict.Unknown++
			if in.Call == "read" { // it has no effect
				continue
			}
		}
		partitions[in.Register] = append(partitions[in.Register], operation)
		if in.Call == "write" && !harmed[in.Expected] {
			for _, problem := range stepProblems(bodies, in) {
				verdict.add("lane: %s, op=%d register=%s", problem, op, in.Register)
			}
		}
	}
	verdict.Identities = len(partitions)
	for _, name := range sortedKeys(partitions) {
		switch porcupine.CheckOperationsTimeout(lane, partitions[name], partitionTimeout) {
		case porcupine.Illegal:
			verdict.add("lane: no order explains the results, register=%s", name)
		case porcupine.Unknown:
			verdict.add("lane: not decided within %s, register=%s", partitionTimeout, name)
		}
	}
}

// laneState is a register as docs/queue.md describes its bytes; entries by their sequence numbers.
type laneState struct {
	layout                       uint16
	revision, epoch, next, acked uint64
	nonce                        []byte
	entries                      map[uint64][]byte
	segments                     [][2]uint64
}

// decodeLane returns a register, or an error if its bytes or the rules between them are broken.
func decodeLane(body []byte) (state laneState, err error) {
	defer func() {
		if recover() != nil {
			err = fmt.Errorf("it is too short")
		}
	}()
	little := binary.LittleEndian
	if string(body[:4]) != "LMQ1" {
		return state, fmt.Errorf("it has another magic")
	}
	sum := crc32.Update(crc32.ChecksumIEEE(body[:96]), crc32.IEEETable, make([]byte, 4))
	if crc32.Update(sum, crc32.IEEETable, body[100:]) != little.Uint32(body[96:]) {
		return state, fmt.Errorf("it has another checksum")
	}
	state = laneState{
		layout: little.Uint16(body[6:]), revision: little.Uint64(body[8:]), nonce: body[16:32], epoch: little.Uint64(body[32:]),
		next: little.Uint64(body[56:]), acked: little.Uint64(body[64:]), entries: map[uint64][]byte{},
	}
	count, writers := little.Uint32(body[72:]), int(little.Uint16(body[76:]))
	segments, rest := little.Uint32(body[80:]), body[100+32*writers:]
	expected := state.acked + 1
	for range segments {
		first, last := little.Uint64(rest), little.Uint64(rest[8:])
		if first > expected || last < first {
			return state, fmt.Errorf("its segments are not contiguous")
		}
		state.segments = append(state.segments, [2]uint64{first, last})
		expected, rest = last+1, rest[24:]
	}
	for range count {
		size := 4 + little.Uint32(rest)
		if sequence := little.Uint64(rest[4:]); sequence != expected {
			return state, fmt.Errorf("the entry %d is at the place of %d", sequence, expected)
		}
		state.entries[expected] = rest[:size]
		expected, rest = expected+1, rest[size:]
	}
	if expected != state.next || len(rest) != 0 {
		return state, fmt.Errorf("its entries do not end before the next sequence")
	}
	return state, nil
}

// stepProblems compares a state that is written with the one that it replaces: nothing is lost.
func stepProblems(bodies map[string][]byte, write *Access) (found []string) {
	after, err := decodeLane(bodies[write.Sha256])
	switch {
	case err != nil:
		return []string{"a register cannot be decoded: " + err.Error()}
	case write.Expected == "unconditional":
		return []string{"a write has no condition"}
	case strings.HasPrefix(write.Expected, "unknown "):
		return []string{"a write names a state that the server never returned"}
	case write.Expected == "":
		return nil
	}
	before, err := decodeLane(bodies[write.Expected])
	if err != nil {
		return nil // reported where it was written
	}
	if after.revision != before.revision+1 || bytes.Equal(after.nonce, before.nonce) {
		found = append(found, "a write repeats a revision or a nonce")
	}
	sameLayout := after.layout == before.layout // another one has no consumer yet
	if after.next < before.next || after.acked < before.acked || sameLayout && after.epoch < before.epoch {
		found = append(found, "a write moves a position backwards")
	}
	for sequence, entry := range before.entries {
		kept := sequence <= after.acked || bytes.Equal(after.entries[sequence], entry)
		for _, segment := range after.segments {
			kept = kept || segment[0] <= sequence && sequence <= segment[1]
		}
		if !kept {
			found = append(found, fmt.Sprintf("a write loses or changes the entry %d", sequence))
		}
	}
	return found
}
