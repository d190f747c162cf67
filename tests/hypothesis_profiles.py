"""Hypothesis' profiles, for each conftest.py. `make test-all` uses --hypothesis-profile=nightly."""

import hypothesis

for name, examples in {"push": 30, "nightly": 300}.items():
    # a busy machine is not a failure; speed is for the benchmarks
    slow = [hypothesis.HealthCheck.too_slow]
    # every change is tested with the same examples; other ones are looked for at night
    same = name == "push"
    hypothesis.settings.register_profile(
        name, max_examples=examples, deadline=None, derandomize=same, suppress_health_check=slow
    )
hypothesis.settings.load_profile("push")
