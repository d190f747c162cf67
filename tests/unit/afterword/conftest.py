import pytest

from tests.unit.afterword.reading.remembered import Remembered


@pytest.fixture
def world() -> Remembered:
    return Remembered()
