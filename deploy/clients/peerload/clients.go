package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/twmb/franz-go/pkg/kgo"
)

const (
	topic   = "bench"
	timeout = 60 * time.Second
)

// --- HTTP: sluice and the Collector ---------------------------------------------------------------

type httpClient struct {
	client *http.Client
	origin string
}

func openHTTP(address string, count int) ([]Client, error) {
	clients := make([]Client, count)
	for index := range clients {
		made := &httpClient{
			client: &http.Client{Transport: &http.Transport{MaxConnsPerHost: 1}, Timeout: timeout},
			origin: "http://" + address,
		}
		response, err := made.client.Get(made.origin + "/livez") // any response: it connects
		if err != nil {
			return nil, err
		}
		if _, err := io.Copy(io.Discard, response.Body); err != nil {
			return nil, err
		}
		response.Body.Close()
		clients[index] = made
	}
	return clients, nil
}

// accepted is what the responses of sluice contain; a list has a result for each frame.
type accepted struct {
	Duplicate bool `json:"duplicate"`
	Results   []struct {
		Status int `json:"status"`
	} `json:"results"`
}

func (c *httpClient) Send(requests []Request) error {
	for _, one := range requests {
		if err := c.sendOne(one); err != nil {
			return err
		}
	}
	return nil
}

func (c *httpClient) sendOne(one Request) error {
	request, err := http.NewRequest(http.MethodPost, c.origin+one.Head.Path, bytes.NewReader(one.Body))
	if err != nil {
		return err
	}
	for name, value := range one.Head.Headers {
		request.Header.Set(name, value)
	}
	response, err := c.client.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		return err
	}
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("status %d: %s", response.StatusCode, body)
	}
	if !strings.HasPrefix(response.Header.Get("Content-Type"), "application/json") {
		return nil
	}
	var answer accepted
	if err := json.Unmarshal(body, &answer); err != nil {
		return err
	}
	if answer.Duplicate {
		return fmt.Errorf("a duplicate: %s", body)
	}
	for _, result := range answer.Results {
		if result.Status != http.StatusOK {
			return fmt.Errorf("a frame of the list was refused: %s", body)
		}
	}
	return nil
}

// --- Kafka ----------------------------------------------------------------------------------------

type kafkaClient struct {
	client    *kgo.Client
	partition int32
}

func openKafka(address string, count int) ([]Client, error) {
	clients := make([]Client, count)
	for index := range clients {
		client, err := kgo.NewClient(
			kgo.SeedBrokers(address),
			kgo.AllowAutoTopicCreation(),
			kgo.RequiredAcks(kgo.AllISRAcks()),
			kgo.ProducerBatchCompression(kgo.NoCompression()),
			kgo.ProducerBatchMaxBytes(4<<20),
			kgo.ProducerLinger(0),
			kgo.RecordPartitioner(kgo.ManualPartitioner()),
			kgo.RecordDeliveryTimeout(timeout),
		)
		if err != nil {
			return nil, err
		}
		made := &kafkaClient{client: client, partition: int32(index)}
		if err := made.Send([]Request{{Body: []byte("connect")}}); err != nil {
			return nil, err
		}
		clients[index] = made
	}
	return clients, nil
}

func (c *kafkaClient) Send(requests []Request) error {
	records := make([]*kgo.Record, len(requests))
	for index, one := range requests {
		records[index] = &kgo.Record{Topic: topic, Partition: c.partition, Value: one.Body}
	}
	return c.client.ProduceSync(context.Background(), records...).FirstErr()
}

// --- NATS JetStream -------------------------------------------------------------------------------

type natsClient struct {
	stream jetstream.JetStream
}

func openNATS(address string, count int) ([]Client, error) {
	clients := make([]Client, count)
	for index := range clients {
		connection, err := nats.Connect("nats://" + address)
		if err != nil {
			return nil, err
		}
		stream, err := jetstream.New(connection)
		if err != nil {
			return nil, err
		}
		clients[index] = &natsClient{stream: stream}
	}
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	_, err := clients[0].(*natsClient).stream.CreateOrUpdateStream(ctx, jetstream.StreamConfig{
		Name: topic, Subjects: []string{topic}, Storage: jetstream.FileStorage,
	})
	return clients, err
}

func (c *natsClient) Send(requests []Request) error {
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	for _, one := range requests {
		if _, err := c.stream.Publish(ctx, topic, one.Body); err != nil {
			return err
		}
	}
	return nil
}
