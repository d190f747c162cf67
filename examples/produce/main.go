package main

import (
	"context"
	"encoding/json"
	"log"
	"os"

	"github.com/twmb/franz-go/pkg/kgo"
)

func main() {
	servers := os.Getenv("BOOTSTRAP_SERVERS")
	if servers == "" {
		servers = "127.0.0.1:9092"
	}
	client, err := kgo.NewClient(kgo.SeedBrokers(servers)) // idempotent, acks=all, murmur2: its defaults
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()
	message := map[string]string{
		"id":              "go-1",
		"conversation_id": "conversation-42",
		"user_id":         "user-7",
		"role":            "user",
		"content":         "Where is my order?",
	}
	value, err := json.Marshal(message)
	if err != nil {
		log.Fatal(err)
	}
	record := &kgo.Record{Topic: "messages", Key: []byte(message["conversation_id"]), Value: value}
	if err := client.ProduceSync(context.Background(), record).FirstErr(); err != nil {
		log.Fatal(err)
	}
}
