"""Kafka: clients that survive any refusal and any record, and readers of whole topics."""
