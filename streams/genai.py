"""Names of OpenTelemetry's GenAI semantic conventions 0.1.0, which are otherwise only in `telemetry/metrics.toml`.

They moved to a repository of their own, open-telemetry/semantic-conventions-genai, which depends on the general
conventions 1.45.0.
"""

from typing import Literal

SCHEMA_URL = "https://opentelemetry.io/schemas/gen-ai/0.1.0"

OPERATION = "gen_ai.operation.name"
PROVIDER = "gen_ai.provider.name"
REQUEST_MODEL = "gen_ai.request.model"
INPUT_TOKENS = "gen_ai.usage.input_tokens"
CACHED_TOKENS = "gen_ai.usage.cache_read.input_tokens"
OUTPUT_TOKENS = "gen_ai.usage.output_tokens"
RECORD_ID = "gen_ai.memory.record.id"
RECORD_COUNT = "gen_ai.memory.record.count"

CHAT = "chat"
SEARCH_MEMORY = "search_memory"
MemoryChange = Literal["create_memory", "update_memory", "delete_memory"]
