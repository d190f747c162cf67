"""Sentences from which the model of statements learns."""

import random

from tools.statements import LEAST_OF_A_LINE, sentences


def test_sentence_template_yields_every_alternative() -> None:
    animals = [f"animal{n}" for n in range(2 * LEAST_OF_A_LINE)]

    made = sentences(f"I have {{a dog|{'|'.join(animals)}}} {{now|}}", random.Random(57))

    assert {one.removesuffix(" now") for one in made} == {"I have a dog", *(f"I have {one}" for one in animals)}
