"""Convert ShareGPT's `conversations` lists for `afterword import jsonl -`. Usage: python sharegpt.py FILE USER"""

import json
import sys
from pathlib import Path

ROLES = {"human": "user", "user": "user", "gpt": "assistant", "system": "system", "tool": "tool"}

for record in json.loads(Path(sys.argv[1]).read_text()):
    for number, said in enumerate(record["conversations"]):
        message = {
            "id": str(number),
            "conversation_id": str(record["id"]),
            "user_id": sys.argv[2],
            "role": ROLES[said["from"]],
            "content": said["value"],
        }
        sys.stdout.write(json.dumps(message) + "\n")
