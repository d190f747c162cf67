#!/usr/bin/env bash
# qdrant-edge-py 0.9.0: a point that is overwritten by another of the same id does not count as deleted, so optimizing
# never cleans the segment and the old payload stays in its files. A point that is deleted first is cleaned away, once
# more than `deleted_threshold` of the segment's points are deleted.
# Seen: "overwritten: optimized False, kept True", "deleted first: optimized True, kept False".
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet qdrant-edge-py==0.9.0
seen=$("$folder/venv/bin/python" - "$folder" <<'PYTHON'
import sys
from pathlib import Path
from uuid import UUID

import qdrant_edge as qdrant

update = qdrant.UpdateOperation
for way in ("overwritten", "deleted first"):
    files = Path(sys.argv[1], way)
    config = qdrant.EdgeConfig(
        vectors={},
        sparse_vectors={"words": qdrant.EdgeSparseVectorParams()},
        optimizers=qdrant.EdgeOptimizersConfig(deleted_threshold=0.001, vacuum_min_vector_number=100),
        wal_enabled=False,
    )
    shard = qdrant.EdgeShard.create(str(files), config)
    shard.update(update.create_field_index("user", qdrant.PayloadSchemaType.Keyword))
    words = {"words": qdrant.SparseVector([1], [1.0])}
    users = [*(f"u{n}" for n in range(150)), "needle-4711"]
    shard.update(update.upsert_points([qdrant.Point(UUID(int=n), words, {"user": user}) for n, user in enumerate(users)]))
    shard.optimize()
    shard.flush()
    if way == "deleted first":
        shard.update(update.delete_points([UUID(int=150)]))
    shard.update(update.upsert_points([qdrant.Point(UUID(int=150), {}, {})]))
    optimized = shard.optimize()
    shard.flush()
    shard.close()
    kept = any(b"needle-4711" in file.read_bytes() for file in files.rglob("*") if file.is_file())
    print(f"{way}: optimized {optimized}, kept {kept}")
PYTHON
)
echo "qdrant-edge-py 0.9.0: $seen"
expected='overwritten: optimized False, kept True
deleted first: optimized True, kept False'
test "$seen" = "$expected" || { echo "this has changed"; exit 1; }
