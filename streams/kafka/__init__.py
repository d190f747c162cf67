"""Kafka: clients that no refusal and no record can stop, and whole topics from beginning to end."""
