"""The events as documents that other languages read: JSON Schema, AsyncAPI, and what may change in them."""
