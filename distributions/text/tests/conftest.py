"""Tests of this distribution."""

import tests.hypothesis_profiles  # noqa: F401 – loading it sets the profile
