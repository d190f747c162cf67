"""A counter per key on quixstreams, exactly once."""

from typing import Any

from benchmarks.programs.configuration import from_environment
from benchmarks.programs.quix_application import application


def add(message: dict[str, Any], state: Any) -> None:
    state.set("total", state.get("total", 0) + message["amount"])


def main() -> None:
    bench = from_environment()
    app = application(bench)
    app.dataframe(app.topic(bench.messages)).update(add, stateful=True)
    app.run()


if __name__ == "__main__":
    main()
