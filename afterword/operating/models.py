"""Fetches the files of a sentence encoder from the Hugging Face hub, for embedder.provider = "onnx"."""

from pathlib import Path

import httpx

from afterword.installed import extra_required
from afterword.streams.errors import AfterwordError

with extra_required("onnx", "afterword embedder get"):
    from huggingface_hub import HfApi, snapshot_download
    from huggingface_hub.errors import HfHubHTTPError

FILES = (
    *("onnx/model.onnx", "onnx/model.onnx_data", "model.onnx", "model.onnx_data", "1_Pooling/config.json"),
    *("config.json", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"),
)
"""What a folder needs; nothing else is fetched, and no code of the repository is run."""
MODEL_FILES = ("onnx/model.onnx", "model.onnx")


class ModelNotFetched(AfterwordError):
    """{name} was not fetched: {problem}"""


def fetch_model(name: str, directory: Path, revision: str | None = None, hub: str | None = None) -> str:
    """Fetch a model's files into a folder, and return the commit that they are of.

    `revision` is a commit, tag or branch; by default the repository's newest commit. `hub` is the hub's address; by
    default that in HF_ENDPOINT, else the public one. HF_TOKEN is a token for it. Raises: ModelNotFetched.
    """
    try:
        commit = HfApi(endpoint=hub).model_info(name, revision=revision).sha or ""
        snapshot_download(name, revision=commit, allow_patterns=[*FILES], local_dir=directory, endpoint=hub)
    except HfHubHTTPError as error:
        problem = f"the hub answers with {error.response.status_code}"
        raise ModelNotFetched(name=name, problem=problem) from None
    except (httpx.HTTPError, OSError, ValueError) as error:  # ValueError: no name of a repository
        raise ModelNotFetched(name=name, problem=str(error)) from None
    if not any((directory / file).is_file() for file in MODEL_FILES):
        raise ModelNotFetched(name=name, problem=f"its repository has no {' and no '.join(MODEL_FILES)}")
    return commit
