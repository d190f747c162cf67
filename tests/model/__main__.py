"""The model check on its own: histories per minute, and whether it finds what was broken on purpose.

Run `python -m tests.model [--histories N] [MACHINE]`, or `python -m tests.model --mutants`.
"""

import argparse
import sys
import time

from hypothesis import Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.model import mutants
from tests.model.machine import FaultMachine
from tests.model.profiles import EXAMPLES, profile, quiet
from tests.model.segmenter_machine import AgentsMachine, DamagedMachine, SegmenterMachine
from tests.model.summarizer_machine import SummarizerMachine

MACHINES: dict[str, type[FaultMachine]] = {
    "segmenter": SegmenterMachine,
    "agents": AgentsMachine,
    "damaged": DamagedMachine,
    "summarizer": SummarizerMachine,
}

ROUND = 500
"""Histories after which hypothesis begins anew: it remembers all of them."""


def main() -> int:
    options = arguments()
    if options.mutants:
        return 0 if mutants.all_found(options.only) else 1
    for name in [options.machine] if options.machine else MACHINES:
        tell(name, options.histories, [Phase.generate] if options.raw else [Phase.generate, Phase.shrink])
    return 0


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.model")
    parser.add_argument("machine", nargs="?", choices=MACHINES)
    parser.add_argument("--histories", type=int, default=EXAMPLES["long"])
    parser.add_argument("--raw", action="store_true", help="show a history that fails as it is, not made smaller")
    parser.add_argument("--mutants", action="store_true", help="break the code on purpose, in a copy, and see it found")
    parser.add_argument("--only", default="", help="of the mutants, those whose sentence contains this")
    return parser.parse_args()


def tell(name: str, histories: int, phases: list[Phase]) -> None:
    """Raises: whatever a history finds; the smallest such history is printed."""
    machine = MACHINES[name]
    with quiet():
        run_state_machine_as_test(machine, settings=once(1, phases))  # imports and vocabularies are loaded
    machine.told, began, worked = 0, time.perf_counter(), time.process_time()
    with quiet():
        for told in range(0, histories, ROUND):
            run_state_machine_as_test(machine, settings=once(min(ROUND, histories - told), phases))
    minutes, busy = (time.perf_counter() - began) / 60, (time.process_time() - worked) / 60
    rates = f"{machine.told / minutes:.0f} a minute, {machine.told / busy:.0f} a minute of processor time"
    sys.stdout.write(f"{name}: {machine.told} histories, {rates}\n")


def once(histories: int, phases: list[Phase]) -> settings:
    """Settings for that many new histories."""
    return settings(profile(), max_examples=histories, database=None, phases=phases)


if __name__ == "__main__":
    sys.exit(main())
