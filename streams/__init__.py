"""The workers, each in a folder of its own, and what they share: stores, Kafka, text, settings."""
