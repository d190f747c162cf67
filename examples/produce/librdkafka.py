"""Send a message with librdkafka, whose default partitioner would choose another partition."""

import json
import os

from confluent_kafka import Producer

producer = Producer(
    {
        "bootstrap.servers": os.environ.get("BOOTSTRAP_SERVERS", "127.0.0.1:9092"),
        "partitioner": "murmur2_random",
        "enable.idempotence": True,
    }
)
message = {
    "id": "librdkafka-1",
    "conversation_id": "conversation-42",
    "user_id": "user-7",
    "role": "user",
    "content": "Where is my order?",
}
failures = []
producer.produce(
    "messages",
    json.dumps(message),
    key=message["conversation_id"],
    on_delivery=lambda error, _: failures.append(error) if error else None,
)
producer.flush(30)
if failures:
    raise SystemExit(str(failures[0]))
