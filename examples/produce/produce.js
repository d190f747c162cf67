const { Kafka, Partitioners } = require("kafkajs");

const kafka = new Kafka({ clientId: "chat", brokers: [process.env.BOOTSTRAP_SERVERS ?? "127.0.0.1:9092"] });
const producer = kafka.producer({ createPartitioner: Partitioners.DefaultPartitioner, idempotent: true });

async function main() {
  const message = {
    id: "node-1",
    conversation_id: "conversation-42",
    user_id: "user-7",
    role: "user",
    content: "Where is my order?",
  };
  await producer.connect();
  await producer.send({
    topic: "messages",
    acks: -1,
    messages: [{ key: message.conversation_id, value: JSON.stringify(message) }],
  });
  await producer.disconnect();
}

main();
