"""The share of a summary that its source supports, however either is written."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from afterword_text.gate import Evidence, Grounding, ground
from afterword_text.gate.claims import months
from afterword_text.gate.quantities import CURRENCIES, MAGNITUDES
from afterword_text.language import detect
from tests.rows import with_rows


def grounded(summary: str, source: str, language: str = "en") -> Grounding:
    return ground([summary], Evidence(source, language), language)


@with_rows
def test_different_spelling_of_the_same_thing_is_supported(summary: str, source: str) -> None:
    assert grounded(summary, source) == Grounding(1.0, (), wrong_figure=False)


@with_rows
def test_point_in_a_time_is_read_after_time_words(language: str, summary: str, source: str) -> None:
    assert not grounded(summary, source, language).wrong_figure
    assert grounded(summary.replace("15", "16"), source, language).wrong_figure


@with_rows
def test_same_quantity_is_supported_and_another_is_not(language: str, source: str, right: str, wrong: str) -> None:
    assert not grounded(right, source, language).wrong_figure
    assert grounded(wrong, source, language).wrong_figure


@with_rows
def test_other_figure_or_address_is_unsupported(summary: str, source: str, token: str) -> None:
    found = grounded(summary, source)
    assert (found.share, found.wrong_figure) == (0.0, True)
    assert [text.strip() for text in found.unsupported] == [token.strip()]


@with_rows
def test_names_differ_from_capitalized_ordinary_words(summary: str, names: list[str]) -> None:
    assert list(grounded(summary, "nothing of that was said").unsupported) == names


@with_rows
def test_ordinary_word_at_a_sentences_start_is_no_name(language: str, words: str, rest: str) -> None:
    for word in words.split():
        assert grounded(f"It was so. {word}, {rest}", "nothing of that", language).unsupported == (), word


@pytest.mark.parametrize("name", ["Okafor", "Emily", "Kelly", "Beverly"])
def test_name_at_a_sentence_start_is_a_name(name: str) -> None:
    assert grounded(f"It was so. {name} was told.", "nothing of that").unsupported == (name,)


def test_german_nouns_need_a_mark_to_be_names() -> None:
    summary = "Die Rechnung wurde bezahlt. Frau Lindqvist und Thomas Brandauer waren dabei."
    assert grounded(summary, "wir haben das bezahlt", "de").unsupported == ("Lindqvist", "Thomas", "Brandauer")


def test_scripts_without_capitals_are_checked_by_figures() -> None:
    source = "8月15日下午3点有MU5405，改签费每人260元。"
    assert grounded("航班MU5405，8月15日，260元。", source, "zh").share == 1.0
    assert grounded("航班MU5406，8月15日，260元。", source, "zh").unsupported == ("MU5406",)


@pytest.mark.parametrize("date", ["23 aprıl", "maı 23", "APRİL 23", "23 mıo", "23 MİO €"])
def test_turkish_i_makes_no_name_a_month_or_unit(date: str) -> None:
    assert grounded(f"It is due {date}.", f"due {date}") == Grounding(1.0, (), wrong_figure=False)
    assert grounded(f"It is due {date}.", "due 7 June").wrong_figure


LOOKALIKES = str.maketrans({"i": "ı", "s": "ſ", "k": "\u212a"})


@given(
    st.lists(
        st.sampled_from(
            sorted(
                f"{number} {name}"
                for name in (*months("en"), *MAGNITUDES, *CURRENCIES)
                if not name.isdigit()
                for number in ("7", "")
            )
        )
        .flatmap(lambda text: st.sampled_from([text, text.upper(), text.translate(LOOKALIKES), text.replace("i", "İ")]))
        .map(lambda text: f"{text} 9")
    )
)
def test_every_spelling_of_months_and_units_is_handled(parts: list[str]) -> None:
    text = ". ".join(parts)
    assert not grounded(text, text).unsupported


def test_writers_own_count_is_left_open() -> None:
    assert grounded("They compared three options.", "we could take the bus or walk or fly") == Grounding(1.0, (), False)


def test_right_names_do_not_excuse_a_wrong_figure() -> None:
    found = grounded("Maria, Paulo, Chen and Priya paid $40.", "maria, paulo, chen and priya paid $30")
    assert found == Grounding(0.0, ("$40",), wrong_figure=True)


def test_rolling_summary_does_not_hide_inventions() -> None:
    carried = "Maria lives in Lima with Paulo, Chen and Priya."
    evidence = Evidence(f"{carried}\nmaria bought a bike", "en")
    found = ground([], evidence, "en", rolling=f"{carried} Maria bought a bike from Hector.", carried=carried)
    assert found == Grounding(0.0, ("Hector",), wrong_figure=False)


def test_listed_problems_are_bounded() -> None:
    names = " ".join(f"met Xavier{chr(97 + n // 26)}{chr(97 + n % 26)}q" for n in range(100))
    found = grounded(f"They {names} and Y{'z' * 35}.", "nobody")
    assert len(found.unsupported) == 20
    assert max(map(len, found.unsupported)) <= 60


@given(st.integers(13, 10**9), st.sampled_from([",", ".", " ", "'", "\u202f"]))
def test_thousands_separators_change_no_number(number: int, separator: str) -> None:
    assert grounded(f"It was {number:,}.".replace(",", separator, 5), f"exactly {number} of them").share == 1.0


@given(st.text(max_size=300), st.text(max_size=300))
def test_any_text_can_be_read(summary: str, source: str) -> None:
    found = ground([summary], Evidence(source, detect(source)), detect(source))
    assert 0.0 <= found.share <= 1.0
    assert (found.share == 1.0) == (found.unsupported == ())


@with_rows
def test_text_reads_alike_as_summary_and_source(text: str) -> None:
    assert not grounded(text, text).unsupported


@given(st.text(max_size=300))
def test_text_supports_itself(text: str) -> None:
    language = detect(text)
    assert ground([text], Evidence(text, language), language).share == 1.0
