package main

import (
	"math"
	"time"

	"github.com/anishathalye/porcupine"
)

const partitionTimeout = 30 * time.Second

// upload is the input of an operation on the register of an identity.
type upload struct {
	sha256 string
	read   bool
}

// The register of an identity is written once: its state is empty or the sha256 of its owner. An
// operation with an unknown outcome returns at the end of the history, so one that had no effect
// comes last in the order.
var register = porcupine.Model{
	Init: func() any { return "" },
	Step: func(state, input, output any) (bool, any) {
		owner, in, result := state.(string), input.(upload), output.(string)
		if in.read {
			return owner == in.sha256, owner
		}
		switch result {
		case "new":
			return owner == "", in.sha256
		case "duplicate":
			return owner == in.sha256, owner
		case "conflict":
			return owner != "" && owner != in.sha256, owner
		default: // unknown
			if owner == "" {
				return true, in.sha256
			}
			return true, owner
		}
	},
}

// deciding returns the uploads that can change which orders exist. A refused one has no effect. An
// upload with an unknown outcome may take effect at any time after its beginning, so the earliest
// one of the same bytes has each effect that a later one could have. Without the later ones, the
// search does not grow exponentially with the number of lost responses.
func deciding(operations []*Operation) []*Operation {
	found := []*Operation{}
	earliest := map[key]*Operation{}
	for _, one := range operations {
		switch bytes := (key{one.Identity, one.Sha256}); {
		case one.Call != "upload" || one.End.Result == "refused":
		case one.Outcome != "unknown":
			found = append(found, one)
		case earliest[bytes] == nil || one.Time < earliest[bytes].Time:
			earliest[bytes] = one
		}
	}
	for _, one := range earliest {
		found = append(found, one)
	}
	return found
}

// checkRegister checks each identity, with a read of its manifest after the run.
func checkRegister(history *History, verdict *Verdict) {
	owners := map[string]string{}
	for _, fact := range history.State {
		if fact.Kind == "manifest" {
			owners[fact.Identity] = fact.Sha256
		}
	}
	partitions := map[string][]porcupine.Operation{}
	for _, one := range history.Operations {
		if one.Call == "upload" { // also if each of its tries was refused: then nothing owns it
			partitions[one.Identity] = nil
		}
	}
	for _, one := range deciding(history.Operations) {
		returned, result := one.End.Time, one.End.Result
		if one.Outcome == "unknown" {
			returned, result = math.MaxInt64, "unknown"
		}
		partitions[one.Identity] = append(partitions[one.Identity], porcupine.Operation{
			ClientId: one.Client, Input: upload{sha256: one.Sha256}, Call: one.Time,
			Output: result, Return: returned,
		})
	}
	for _, identity := range sortedKeys(partitions) {
		operations := append(partitions[identity], porcupine.Operation{
			Input: upload{sha256: owners[identity], read: true}, Call: math.MaxInt64 - 1,
			Output: "read", Return: math.MaxInt64,
		})
		switch porcupine.CheckOperationsTimeout(register, operations, partitionTimeout) {
		case porcupine.Illegal:
			verdict.add("register: no order explains the results, identity=%s", identity)
		case porcupine.Unknown:
			verdict.add("register: not decided within %s, identity=%s", partitionTimeout, identity)
		}
	}
}
