// Command peerload sends prepared requests to one server and measures each of them. Every client
// waits for the acknowledgement of its request before it sends the next one.
//
// The requests are read from a file. Each is a length of 32 bits (little-endian) and a head as
// JSON, then a length and a body. The program prints "ready" when every client is connected. It
// starts when a line arrives on its standard input, and prints one JSON document at the end.
package main

import (
	"bufio"
	"encoding/binary"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"sync"
	"sync/atomic"
	"time"
)

// Head is what a request has in addition to its body; only HTTP uses it.
type Head struct {
	Path    string            `json:"path"`
	Headers map[string]string `json:"headers"`
}

// Request is one prepared request.
type Request struct {
	Head Head
	Body []byte
}

// Client sends requests over connections that no other client uses.
type Client interface {
	// Send returns when the server has acknowledged all requests.
	Send(requests []Request) error
}

// Result is the printed document.
type Result struct {
	WallS     float64 `json:"wall_s"`
	Sent      int     `json:"sent"`
	Latencies []int64 `json:"latencies_us"`
}

func readRequests(path string) ([]Request, error) {
	content, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var found []Request
	next := func() ([]byte, error) {
		if len(content) < 4 {
			return nil, io.ErrUnexpectedEOF
		}
		size := int(binary.LittleEndian.Uint32(content))
		if len(content) < 4+size {
			return nil, io.ErrUnexpectedEOF
		}
		part := content[4 : 4+size]
		content = content[4+size:]
		return part, nil
	}
	for len(content) > 0 {
		head, err := next()
		if err != nil {
			return nil, err
		}
		var request Request
		if err := json.Unmarshal(head, &request.Head); err != nil {
			return nil, err
		}
		if request.Body, err = next(); err != nil {
			return nil, err
		}
		found = append(found, request)
	}
	if len(found) == 0 {
		return nil, errors.New("the file has no request")
	}
	return found, nil
}

// supply hands out groups of requests until it has no more, or the time is over.
type supply struct {
	requests []Request
	group    int
	groups   int64
	until    time.Time
	taken    atomic.Int64
}

func (s *supply) next() []Request {
	number := s.taken.Add(1) - 1
	if number >= s.groups || time.Now().After(s.until) {
		return nil
	}
	if s.group == 1 {
		at := int(number) % len(s.requests)
		return s.requests[at : at+1]
	}
	found := make([]Request, s.group)
	for index := range found {
		found[index] = s.requests[(int(number)*s.group+index)%len(s.requests)]
	}
	return found
}

func run(clients []Client, s *supply) (Result, error) {
	latencies := make([][]int64, len(clients))
	failures := make([]error, len(clients))
	var running sync.WaitGroup
	started := time.Now()
	for index, client := range clients {
		running.Go(func() {
			for group := s.next(); group != nil; group = s.next() {
				began := time.Now()
				if failures[index] = client.Send(group); failures[index] != nil {
					return
				}
				latencies[index] = append(latencies[index], time.Since(began).Microseconds())
			}
		})
	}
	running.Wait()
	result := Result{WallS: time.Since(started).Seconds()}
	for _, some := range latencies {
		result.Latencies = append(result.Latencies, some...)
	}
	result.Sent = len(result.Latencies) * s.group
	return result, errors.Join(failures...)
}

func open(kind, address string, count int) ([]Client, error) {
	switch kind {
	case "http":
		return openHTTP(address, count)
	case "kafka":
		return openKafka(address, count)
	case "nats":
		return openNATS(address, count)
	}
	return nil, fmt.Errorf("unknown kind of server: %s", kind)
}

func work() error {
	kind := flag.String("kind", "http", "http, kafka or nats")
	address := flag.String("address", "", "host and port of the server")
	count := flag.Int("clients", 16, "clients that send concurrently")
	seconds := flag.Float64("seconds", 2, "no request is sent after this time")
	group := flag.Int("group", 1, "requests that a client sends together")
	requestsMax := flag.Int("requests", 0, "requests to send, also repeated ones; 0: each once")
	flag.Parse()
	requests, err := readRequests(flag.Arg(0))
	if err != nil {
		return fmt.Errorf("cannot read requests: %w, path=%s", err, flag.Arg(0))
	}
	clients, err := open(*kind, *address, *count)
	if err != nil {
		return fmt.Errorf("cannot connect: %w, address=%s", err, *address)
	}
	fmt.Println("ready")
	if _, err := bufio.NewReader(os.Stdin).ReadString('\n'); err != nil {
		return err
	}
	wanted := *requestsMax
	if wanted == 0 {
		wanted = len(requests)
	}
	result, err := run(clients, &supply{
		requests: requests,
		group:    *group,
		groups:   int64(wanted / *group),
		until:    time.Now().Add(time.Duration(*seconds * float64(time.Second))),
	})
	if err != nil {
		return fmt.Errorf("cannot send: %w", err)
	}
	return json.NewEncoder(os.Stdout).Encode(result)
}

func main() {
	if err := work(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
