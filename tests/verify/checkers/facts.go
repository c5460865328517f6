package main

import (
	"fmt"
	"slices"
	"sort"
	"strconv"
	"strings"
)

type key struct{ identity, sha256 string }

// payload is what an operation sent, over all its tries.
type payload struct {
	name         string
	call         string
	identity     string
	sha256       string
	records      int
	invoked      int64 // its first try
	acknowledged int64 // its first success; 0 if there is none
	possible     bool  // a try succeeded or has an unknown outcome
	hidden       int64 // the beginning of a delete of its records; 0 if there is none
	deleted      int64 // the end of a delete that succeeded; 0 if there is none
	erased       bool  // an erasure of its records has ended
}

func (p *payload) body(index int) string { return p.name + " " + strconv.Itoa(index) }

func payloadsOf(history *History) map[string]*payload {
	found := map[string]*payload{}
	for _, one := range history.Operations {
		if one.Call == "query" || one.Call == "delete" || one.Call == "erase" {
			continue
		}
		of := found[one.Payload]
		if of == nil {
			of = &payload{one.Payload, one.Call, one.Identity, one.Sha256, one.Records, one.Time, 0, false, 0, 0, false}
			found[one.Payload] = of
		}
		of.possible = of.possible || one.Outcome != "fail"
		if one.Outcome == "ok" && (of.acknowledged == 0 || one.End.Time < of.acknowledged) {
			of.acknowledged = one.End.Time
		}
	}
	for _, one := range history.Operations {
		switch of := found[one.Payload]; {
		case of == nil:
		case one.Call == "erase":
			of.erased = one.Outcome == "ok"
		case one.Call == "delete" && one.Outcome != "fail":
			of.hidden = one.Time
			if one.Outcome == "ok" {
				of.deleted = one.End.Time
			}
		}
	}
	return found
}

// checkFacts compares the store, the table and the answers of queries with the history.
func checkFacts(history *History, verdict *Verdict) {
	payloads := payloadsOf(history)
	erasures := checkErasures(history, verdict)
	owners := checkReceipts(history, erasures, verdict)
	if !slices.Contains(history.Meta.Unread, "row") {
		checkRows(history, payloads, owners, verdict)
	}
	checkConflicts(history, owners, verdict)
	checkGaps(history, owners, verdict)
	checkSpace(history, verdict)
	checkAnswers(history, payloads, verdict)
	for _, fault := range history.Meta.Faults {
		if history.Firings[fault] == 0 {
			verdict.add("fault: it never fired, fault=%s", fault)
		}
	}
}

// checkErasures requires of each erasure that it has ended, that its batch and no other has a
// tombstone, that no version of its blob is left, and that the identity was owned after it.
func checkErasures(history *History, verdict *Verdict) map[key]*Operation {
	erasures, of := map[key]*Operation{}, map[string]*Operation{}
	for _, one := range history.Operations {
		if one.Call == "erase" {
			erasures[key{one.Identity, one.Sha256}] = one
			of[one.Identity] = one
		}
	}
	after := map[key]bool{} // the results of later uploads, by identity
	for _, one := range history.Operations {
		erasure := of[one.Identity]
		if one.Call == "upload" && erasure != nil && one.Time > erasure.End.Time {
			after[key{one.Identity, one.End.Result}] = true
		}
	}
	expired, blobs := map[key]bool{}, map[string]bool{}
	for _, fact := range history.State {
		switch fact.Kind {
		case "tombstone":
			bytes := key{fact.Identity, fact.Sha256}
			expired[bytes] = true
			if erasures[bytes] == nil {
				verdict.add("erase: a batch has expired that was not erased, identity=%s", fact.Identity)
			}
		case "blob", "version":
			blobs[fact.Sha256] = true
		}
	}
	for bytes, one := range erasures {
		if one.Outcome != "ok" {
			verdict.add("erase: it has not ended, identity=%s", bytes.identity)
			continue
		}
		if !expired[bytes] {
			verdict.add("erase: the batch has no tombstone, identity=%s", bytes.identity)
		}
		if blobs[bytes.sha256] {
			verdict.add("erase: a version of the blob is left, identity=%s", bytes.identity)
		}
		for _, result := range []string{"duplicate", "conflict"} {
			if !after[key{bytes.identity, result}] {
				verdict.add("erase: no later upload is a %s, identity=%s", result, bytes.identity)
			}
		}
	}
	return erasures
}

// checkReceipts requires a manifest and an unchanged blob for each success, whenever it was. The
// blob of an erasure that has ended is missing, and that of another one may be.
func checkReceipts(
	history *History, erasures map[key]*Operation, verdict *Verdict,
) map[string]string {
	owners := map[string]string{}
	for _, fact := range history.State {
		if fact.Kind != "manifest" {
			continue
		}
		owners[fact.Identity] = fact.Sha256
		switch erasure := erasures[key{fact.Identity, fact.Sha256}]; {
		case erasure != nil && fact.Blob == "":
		case erasure != nil && erasure.Outcome == "ok":
			verdict.add("erase: the blob is left, identity=%s", fact.Identity)
		case fact.Blob != fact.Sha256:
			verdict.add("receipt: the blob is missing or damaged, identity=%s", fact.Identity)
		}
	}
	for _, one := range history.Operations {
		if one.Call == "upload" && one.Outcome == "ok" && owners[one.Identity] != one.Sha256 {
			verdict.add("receipt: the manifest has other bytes or is missing, identity=%s", one.Identity)
		}
	}
	return owners
}

// checkRows requires each record of each accepted payload exactly once, at its sequence number.
func checkRows(
	history *History, payloads map[string]*payload, owners map[string]string, verdict *Verdict,
) {
	rows := map[string]int{}
	for _, fact := range history.State {
		if fact.Kind != "row" {
			continue
		}
		rows[fact.Body]++
		name, number, _ := strings.Cut(fact.Body, " ")
		index, err := strconv.Atoi(number)
		from := payloads[name]
		if err != nil || from == nil || index >= from.records {
			verdict.add("row: no client sent it, body=%q", fact.Body)
			continue
		}
		if from.call == "upload" {
			prefix, first, _ := rangeOf(from.identity)
			if prefix != fact.Agent+"/"+fact.Boot || first+int64(index) != fact.Seq {
				verdict.add("order: a record has another place, body=%q seq=%d", fact.Body, fact.Seq)
			}
		}
	}
	for _, name := range sortedKeys(payloads) {
		one := payloads[name]
		due := one.acknowledged != 0
		allowed := one.possible
		if one.call == "upload" {
			due = owners[one.identity] == one.sha256
			allowed = due
		}
		first := rows[one.body(0)]
		for index := range one.records {
			switch count := rows[one.body(index)]; {
			case count > 1:
				verdict.add("once: a record is in the table %d times, body=%q", count, one.body(index))
			case one.erased && count > 0:
				verdict.add("erase: an erased record is in the table, body=%q", one.body(index))
			case one.hidden != 0:
				if count > 0 && one.deleted != 0 && history.Meta.Compacted {
					verdict.add("delete: a deleted record is in the table, body=%q", one.body(index))
				}
			case count == 0 && due:
				verdict.add("once: an accepted record is not in the table, body=%q", one.body(index))
			case count == 1 && !allowed:
				verdict.add("once: a refused record is in the table, body=%q", one.body(index))
			case count != first:
				verdict.add("once: a part of a batch is in the table, body=%q", one.body(index))
			}
		}
	}
}

// checkConflicts requires that quarantine has exactly the bytes that were refused.
func checkConflicts(history *History, owners map[string]string, verdict *Verdict) {
	quarantined, sent := map[key]bool{}, map[key]bool{}
	for _, fact := range history.State {
		if fact.Kind == "quarantine" {
			quarantined[key{fact.Identity, fact.Sha256}] = true
			if fact.Blob != fact.Sha256 {
				verdict.add("conflict: the refused blob is missing, identity=%s", fact.Identity)
			}
		}
	}
	for _, one := range history.Operations {
		bytes := key{one.Identity, one.Sha256}
		sent[bytes] = true
		if one.End.Result == "conflict" && !quarantined[bytes] {
			verdict.add("conflict: refused bytes are not in quarantine, identity=%s", one.Identity)
		}
	}
	for bytes := range quarantined {
		if !sent[bytes] || owners[bytes.identity] == bytes.sha256 {
			verdict.add("conflict: quarantine has bytes without a conflict, identity=%s", bytes.identity)
		}
	}
}

// checkSpace requires that no blob is left that no record names and that garbage collection may
// delete because of its age.
func checkSpace(history *History, verdict *Verdict) {
	named := map[string]bool{}
	for _, fact := range history.State {
		if fact.Kind == "manifest" || fact.Kind == "quarantine" {
			named[fact.Sha256] = true
		}
	}
	for _, fact := range history.State {
		if fact.Kind == "blob" && !named[fact.Sha256] && fact.Time < history.Meta.CollectedBefore {
			verdict.add("space: an old blob has no manifest, sha256=%s", fact.Sha256)
		}
	}
}

// rangeOf splits `agent/boot/first-last`.
func rangeOf(identity string) (prefix string, first, last int64) {
	at := strings.LastIndex(identity, "/")
	low, high, _ := strings.Cut(identity[at+1:], "-")
	first, _ = strconv.ParseInt(low, 10, 64)
	last, _ = strconv.ParseInt(high, 10, 64)
	return identity[:at], first, last
}

// checkGaps requires that the reported gaps are those between the accepted ranges of each boot.
func checkGaps(history *History, owners map[string]string, verdict *Verdict) {
	accepted, highest, uploaded := map[string]map[int64]bool{}, map[string]int64{}, map[string]bool{}
	for _, one := range history.Operations {
		if one.Call == "upload" {
			uploaded[one.Identity] = true
		}
	}
	for identity := range owners {
		if !uploaded[identity] { // of a door or an agent: its client does not know the range
			continue
		}
		prefix, first, last := rangeOf(identity)
		if accepted[prefix] == nil {
			accepted[prefix] = map[int64]bool{}
		}
		for seq := first; seq <= last; seq++ {
			accepted[prefix][seq] = true
		}
		highest[prefix] = max(highest[prefix], last)
	}
	due, reported := map[string]bool{}, map[string]bool{}
	for prefix, numbers := range accepted {
		for seq := int64(0); seq < highest[prefix]; seq++ {
			if !numbers[seq] {
				due[fmt.Sprintf("%s/%d", prefix, seq)] = true
			}
		}
	}
	for _, fact := range history.State {
		if fact.Kind == "gap" && accepted[fact.Agent+"/"+fact.Boot] != nil {
			for seq := fact.From; seq <= fact.To; seq++ {
				reported[fmt.Sprintf("%s/%s/%d", fact.Agent, fact.Boot, seq)] = true
			}
		}
	}
	for _, place := range sortedKeys(due) {
		if !reported[place] {
			verdict.add("gap: a missing number is not reported, place=%s", place)
		}
	}
	for _, place := range sortedKeys(reported) {
		if !due[place] {
			verdict.add("gap: a number is reported although it is accepted, place=%s", place)
		}
	}
}

// exceptsBatches returns true if an answer reports that it could not read some batches. Its other
// reasons are about batches that were accepted after its time.
func exceptsBatches(reasons []string) bool {
	for _, reason := range reasons {
		if !strings.Contains(reason, "may be missing") && !strings.Contains(reason, "not enqueued yet") {
			return true
		}
	}
	return false
}

// checkAnswers requires that an answer that is complete until a time has all records until then.
func checkAnswers(history *History, payloads map[string]*payload, verdict *Verdict) {
	ordered := make([]*payload, 0, len(payloads))
	for _, sent := range payloads {
		if sent.acknowledged != 0 && sent.call != "line" { // an agent sends a line later
			ordered = append(ordered, sent)
		}
	}
	sort.Slice(ordered, func(a, b int) bool { return ordered[a].invoked < ordered[b].invoked })
	for _, one := range history.Operations {
		if one.Call != "query" || one.Outcome != "ok" {
			continue
		}
		verdict.Answers++
		seen := map[string]bool{}
		for _, body := range one.End.Seen {
			if seen[body] {
				verdict.add("answer: a record is in it twice, op=%d body=%q", one.Op, body)
			}
			seen[body] = true
			name, _, _ := strings.Cut(body, " ")
			switch from := payloads[name]; {
			case from == nil || from.invoked > one.End.Time:
				verdict.add("answer: a record was not sent yet, op=%d body=%q", one.Op, body)
			case from.deleted != 0 && from.deleted < one.Time:
				verdict.add("delete: a deleted record is in an answer, op=%d body=%q", one.Op, body)
			}
		}
		first := sort.Search(len(ordered), func(at int) bool { return ordered[at].invoked >= one.From })
		for _, sent := range ordered[first:] {
			if sent.invoked >= one.To {
				break
			}
			if sent.acknowledged >= one.End.Until || (sent.hidden != 0 && sent.hidden < one.End.Time) {
				continue
			}
			for index := range sent.records {
				switch {
				case seen[sent.body(index)]:
				case exceptsBatches(one.End.Reasons):
					verdict.Excepted++
				default:
					verdict.add(
						"answer: it is complete through a later time, op=%d body=%q",
						one.Op, sent.body(index),
					)
				}
			}
		}
	}
}
