"""Share of a summary that its source supports, however either of them writes it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from afterword.streams.dates import MONTHS
from afterword.streams.language import detect
from afterword.streams.summarizer.quality import spoken
from afterword.streams.summarizer.quality.facts import EXACT, HintedPattern, fact_keys
from afterword.streams.summarizer.quality.figures import AMOUNT, CURRENCIES, SCALES, amounts
from afterword.streams.summarizer.quality.grounding import Evidence, Grounding, ground
from afterword.streams.summarizer.quality.spoken import spoken_keys

FACT_PATTERNS = [pattern for pattern, _ in EXACT if isinstance(pattern, HintedPattern)]


def grounded(summary: str, source: str, language: str = "en") -> Grounding:
    return ground([summary], Evidence(source, language), language)


@pytest.mark.parametrize(
    ("summary", "source"),
    [
        ("It costs $1,250.50.", "that's 1250.5 dollars"),
        ("It costs 1250,50 €.", "1.250,50 Euro"),
        ("They have 2,000 hats.", "i own two thousand hats"),
        ("They own twenty-three dogs.", "we have 23 dogs"),
        ("The budget is $5k.", "a budget of 5,000 dollars"),
        ("The budget is 2 million euros.", "2,000,000 EUR"),
        ("He finished 3rd.", "he came in third"),
        ("It took 2½ hours.", "it took 2.5 hours"),
        ("It costs $0.75.", "it's $.75"),
        ("It costs ₹150,000.", "₹1,50,000"),
        ("The room has 20 m².", "20 square metres"),
        ("They run version 2.0.1.", "v2.0.1"),
        ("Full-width １２３ was dialled.", "he dialled 123"),
        ("The appointment is on 12 March.", "see you on 2024-03-12"),
        ("The appointment is on 2024-03-12.", "March 12th, 2024 works"),
        ("The appointment is on March 12.", "in March, best on the 12th"),
        ("It is due on 30.6.2025.", "due June 30, 2025"),
        ("The meeting is at 17:00.", "let's meet at 5 pm"),
        ("The meeting is at 5:30 pm.", "17:30 then"),
        ("The order is AB1234.", "order ab-1234 please"),
        ("Order AB-1234 is late.", "my order is AB 1234"),
        ("Call 1-800-772-1213.", "our number is 800 772 1213"),
        ("Order AB12 WITH CODE NEXT.", "ab-12, code with next order"),
        ("See example.org/help.", "look at https://www.example.org/help."),
        ("Write to Jo@Example.org.", "jo@example.org"),
        ("Zoë's cat is called Émile.", "zoe has a cat, emile"),
        ("Marias were told.", "maria"),
        ("The DMV refused.", "The Department of Motor Vehicles refused"),
        ("The Department of Motor Vehicles refused.", "the dmv refused"),
        ("It is on Monday.", "mon at noon"),
    ],
)
def test_the_same_thing_written_differently_is_supported(summary: str, source: str) -> None:
    assert grounded(summary, source) == Grounding(1.0, (), wrong_figure=False)


@pytest.mark.parametrize(
    ("language", "summary", "source"),
    [
        ("da", "Mødet er kl. 15:30.", "vi ses kl. 15.30"),
        ("da", "Mødet er kl. 15.30.", "vi ses 15:30"),
        ("da", "Mødet er kl. 15.30.", "vi ses 15.30"),
        ("it", "La riunione va dalle 15:30 alle 17:00.", "dalle 15.30 alle 17.00"),
    ],
)
def test_a_time_with_a_point_is_one_after_the_words_that_come_before_times(
    language: str, summary: str, source: str
) -> None:
    assert not grounded(summary, source, language).wrong_figure
    assert grounded(summary.replace("15", "16"), source, language).wrong_figure


@pytest.mark.parametrize(
    ("language", "source", "right", "wrong"),
    [
        ("en", "let's meet at half past five", "at 5:30", "at 6:30"),
        ("en", "at a quarter to six", "at 17:45", "at 6:45"),
        ("en", "quarter past twelve", "at 12:15", "at 11:45"),
        ("en", "at noon", "at 12:00", "at 11:00"),
        ("en", "at midnight", "at 12 am", "at 1 am"),
        ("de", "um halb sechs", "um 17:30 Uhr", "um 18:30 Uhr"),
        ("de", "viertel nach drei", "um 15:15 Uhr", "um 14:45 Uhr"),
        ("fr", "à cinq heures et demie", "à 17:30", "à 18:30"),
        ("es", "a las cinco y media", "a las 17:30", "a las 18:30"),
        ("it", "alle cinque e mezza", "alle 17:30", "alle 18:30"),
        ("pt", "às cinco e meia", "às 17:30", "às 18:30"),
        ("nl", "om kwart voor zes", "om 5:45", "om 6:45"),
        ("da", "klokken halv seks", "kl. 17.30", "kl. 18.30"),
        ("en", "two and a half million dollars", "$2.5 million", "$3.5 million"),
        ("de", "anderthalb Stunden", "1,5 Stunden", "15 Stunden"),
        ("fr", "deux et demi", "2,5", "25"),
        ("en", "ten to nine", "at 8:50", "at 9:10"),
        ("en", "at five past six", "at 18:05", "at 17:55"),
        ("en", "at six forty-five", "at 6:45 pm", "at 6:35 pm"),
        ("de", "um zehn nach neun", "um 21:10 Uhr", "um 20:50 Uhr"),
        ("de", "um 15 Uhr 20", "um 15:20 Uhr", "um 15:40 Uhr"),
        ("fr", "à neuf heures vingt", "à 9:20", "à 9:40"),
        ("fr", "à neuf heures moins vingt", "à 8:40", "à 9:20"),
        ("es", "a las seis y diez", "a las 18:10", "a las 17:50"),
        ("it", "alle sei meno dieci", "alle 17:50", "alle 18:10"),
        ("pt", "às seis e dez", "às 18:10", "às 17:50"),
        ("nl", "om tien voor negen", "om 8:50", "om 9:10"),
        ("da", "ti over ni", "kl. 21.10", "kl. 20.50"),
        ("en", "a table at seven", "at 7 pm", "at 8 pm"),
        ("en", "from nine to five", "from 9 am to 5 pm", "from 9 am to 6 pm"),
        ("de", "bis fünf", "bis 17:00 Uhr", "bis 16:00 Uhr"),
        ("en", "we meet at 17:00", "they meet at 5", "they meet at 6.30"),
        ("en", "we meet at 5:30 pm", "they meet at 5.30", "they meet at 6.30"),
        ("en", "12:30 am", "at 0.30", "at 1.30"),
        ("en", "half an hour", "30 minutes", "45 minutes"),
        ("en", "three quarters of it", "75 %", "65 %"),
        ("en", "two thirds of us", "67 %", "76 %"),
        ("en", "half a litre", "0.5 litres", "0.7 litres"),
        ("en", "an hour and a half", "1.5 hours, so 90 minutes", "80 minutes"),
        ("en", "a year and a half", "18 months", "16 months"),
        ("en", "1 1/2 cups", "1.5 cups", "2.5 cups"),
        ("de", "eine Viertelstunde", "15 Minuten", "25 Minuten"),
        ("de", "eine halbe Stunde", "30 Minuten", "40 Minuten"),
        ("fr", "une demi-heure", "30 minutes", "40 minutes"),
        ("es", "media hora", "30 minutos", "40 minutos"),
        ("it", "mezz'ora", "30 minuti", "40 minuti"),
        ("pt", "meia hora", "30 minutos", "40 minutos"),
        ("nl", "een kwartier", "15 minuten", "45 minuten"),
        ("nl", "een half uur", "30 minuten", "40 minuten"),
        ("de", "zwei Viertelstunden", "30 Minuten", "40 Minuten"),
        ("da", "en halv time", "30 minutter", "40 minutter"),
        ("en", "two dozen roses", "24 roses", "22 roses"),
        ("de", "drei Dutzend", "36 Stück", "30 Stück"),
        ("en", "in the nineties", "in the 1990s", "in the 1980s"),
        ("en", "in the twenties", "in the 2020s", "in the 2030s"),
        ("en", "the 2010s", "in the 2010s", "in the 1910s"),
        ("de", "in den Neunzigern", "in den 1990er Jahren", "in den 1980er Jahren"),
        ("de", "in den 90ern", "um 1990", "um 1980"),
        ("fr", "les années quatre-vingt-dix", "les années 1990", "les années 1980"),
        ("es", "los años noventa", "en 1990", "en 1980"),
        ("da", "halvfemserne", "i 1990'erne", "i 1980'erne"),
        ("en", "in the 90s", "in the 1990s", "in the 1980s"),
        ("en", "in the 1990s", "in the 90s", "in the 80s"),
        ("en", "take 0.5 mg", "0.5 mg of it", "5 mg of it"),
        ("en", "$1,250.50", "$1250.50", "250 dollars"),
        ("en", "IBAN DE89 3704 0044 0532 0130 00", "DE89370400440532013000", "DE89370400440532013001"),
        ("en", "IBAN DE89370400440532013000", "DE89 3704 0044 0532 0130 00", "DE89 3704 0044 0532 0130 01"),
    ],
)
def test_times_and_numbers_in_words_are_those_in_digits(language: str, source: str, right: str, wrong: str) -> None:
    assert not grounded(right, source, language).wrong_figure
    assert grounded(wrong, source, language).wrong_figure


@pytest.mark.parametrize(
    ("summary", "source", "token"),
    [
        ("It costs $1,350.50.", "that's 1250.5 dollars", "$1,350.50"),
        ("It costs €50.", "it costs $50", "€50"),
        ("They own twenty-four dogs.", "we have 23 dogs", "24 "),
        ("They own five dogs.", "we have two dogs", "5 "),
        ("It took 21 hours.", "it took 2½ hours", "21"),
        ("It costs $.85.", "it's $0.75", "$0.85"),
        ("It costs ₹1,50,500.", "₹1,50,000", "₹1,50,500"),
        ("They run version 2.0.2.", "version 2.0.1", "2.0.2"),
        ("The appointment is on 13 March.", "see you on 2024-03-12", "13 March"),
        ("The meeting is at 18:00.", "let's meet at 5 pm", "18:00"),
        ("The order is AB1235.", "order ab-1234 please", "AB1235"),
        ("Call 1-800-772-1214.", "our number is 800 772 1213", "1-800-772-1214"),
        ("See evil-example.org.", "look at https://www.example.org/help.", "evil-example.org"),
        ("Write to jo@example.com.", "jo@example.org", "jo@example.com"),
    ],
)
def test_another_figure_or_address_is_not(summary: str, source: str, token: str) -> None:
    found = grounded(summary, source)
    assert (found.share, found.wrong_figure) == (0.0, True)
    assert [text.strip() for text in found.unsupported] == [token.strip()]


@pytest.mark.parametrize(
    ("summary", "names"),
    [
        ("The user met Priya Okafor in Zurich.", ("Priya", "Okafor", "Zurich")),
        ("Okafor called. Payment was confirmed.", ("Okafor",)),
        ("The user asked the Assistant. However, Customers were told.", ()),
        ("Planning A Long Trip With Friends", ()),
        ("They moved. McDonald paid.", ("McDonald",)),
    ],
)
def test_names_are_told_from_words_that_only_begin_a_sentence_or_stand_in_a_title(
    summary: str, names: tuple[str, ...]
) -> None:
    assert grounded(summary, "nothing of that was said").unsupported == names


@pytest.mark.parametrize(
    ("language", "words", "rest"),
    [
        (
            "en",
            "Additionally Furthermore Moreover Meanwhile Nevertheless Consequently Overall Subsequently Interestingly "
            "Alternatively Conversely Fortunately Henceforth Unfortunately Throughout Ultimately Importantly Notably",
            "they were told about it.",
        ),
        ("fr", "Ensuite Cependant Toutefois Finalement Néanmoins Désormais", "ils en ont parlé."),
        ("es", "Además Asimismo Posteriormente Finalmente También", "hablaron de eso."),
        ("it", "Inoltre Infine Tuttavia Successivamente", "ne hanno parlato."),
        ("pt", "Além Ademais Finalmente Posteriormente", "falaram disso."),
        ("nl", "Daarnaast Bovendien Tenslotte Vervolgens", "spraken zij erover."),
        ("da", "Desuden Derudover Endelig Derefter Efterfølgende", "talte de om det."),
    ],
)
def test_a_word_that_begins_a_sentence_alone_is_no_name(language: str, words: str, rest: str) -> None:
    for word in words.split():
        assert grounded(f"It was so. {word}, {rest}", "nothing of that", language).unsupported == (), word


@pytest.mark.parametrize("name", ["Okafor", "Emily", "Kelly", "Beverly"])
def test_a_name_that_begins_a_sentence_stays_one(name: str) -> None:
    assert grounded(f"It was so. {name} was told.", "nothing of that").unsupported == (name,)


def test_german_nouns_are_no_names_and_marked_names_are() -> None:
    summary = "Die Rechnung wurde bezahlt. Frau Lindqvist und Thomas Brandauer waren dabei."
    assert grounded(summary, "wir haben das bezahlt", "de").unsupported == ("Lindqvist", "Thomas", "Brandauer")


def test_scripts_without_capitals_or_spaces_are_checked_by_their_figures() -> None:
    source = "8月15日下午3点有MU5405，改签费每人260元。"
    assert grounded("航班MU5405，8月15日，260元。", source, "zh").share == 1.0
    assert grounded("航班MU5406，8月15日，260元。", source, "zh").unsupported == ("MU5406",)


@pytest.mark.parametrize("date", ["23 aprıl", "maı 23", "APRİL 23", "23 mıo", "23 MİO €"])
def test_a_name_with_a_turkish_i_is_no_month_and_no_unit(date: str) -> None:
    assert grounded(f"It is due {date}.", f"due {date}") == Grounding(1.0, (), wrong_figure=False)
    assert grounded(f"It is due {date}.", "due 7 June").wrong_figure


@pytest.mark.parametrize("language", sorted(spoken._SHARES))
@given(data=st.data())
def test_no_text_is_passed_over_in_which_a_time_or_a_share_would_be_found(language: str, data: st.DataObject) -> None:
    pattern = data.draw(st.sampled_from([spoken._SHARES[language], spoken._SPOKEN_TIMES[language]]))
    text = data.draw(st.from_regex(pattern, fullmatch=True).map(str.lower).filter(lambda it: it == it.casefold()))
    assert spoken_keys(text, language) >= {*spoken._times(text, language), *spoken._shares(text, language)}


def test_a_decade_with_a_turkish_i_is_none() -> None:
    assert grounded("It was in the 1990s.", "in the nıneties").wrong_figure


LOOKALIKES = str.maketrans({"i": "ı", "s": "ſ", "k": "\u212a"})


@given(
    st.lists(
        st.sampled_from(sorted(f"{number} {name}" for name in (*MONTHS, *SCALES, *CURRENCIES) for number in ("7", "")))
        .flatmap(lambda text: st.sampled_from([text, text.upper(), text.translate(LOOKALIKES), text.replace("i", "İ")]))
        .map(lambda text: f"{text} 9")
    )
)
def test_every_way_to_write_a_month_or_a_unit_is_read_or_left(parts: list[str]) -> None:
    text = " ".join(parts)
    assert not grounded(text, text).unsupported


def test_a_count_that_the_writer_made_is_left_open() -> None:
    assert grounded("They compared three options.", "we could take the bus or walk or fly") == Grounding(1.0, (), False)


def test_names_that_are_right_do_not_make_up_for_a_figure_that_is_wrong() -> None:
    found = grounded("Maria, Paulo, Chen and Priya paid $40.", "maria, paulo, chen and priya paid $30")
    assert found == Grounding(0.0, ("$40",), wrong_figure=True)


def test_what_the_rolling_summary_carries_on_does_not_hide_what_was_made_up() -> None:
    carried = "Maria lives in Lima with Paulo, Chen and Priya."
    evidence = Evidence(f"{carried}\nmaria bought a bike", "en")
    found = ground([], evidence, "en", rolling=f"{carried} Maria bought a bike from Hector.", carried=carried)
    assert found == Grounding(0.0, ("Hector",), wrong_figure=False)


def test_what_is_listed_is_bounded() -> None:
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


@given(st.text(max_size=300))
def test_a_text_supports_itself(text: str) -> None:
    language = detect(text)
    assert ground([text], Evidence(text, language), language).share == 1.0


@given(st.text() | st.lists(st.sampled_from([*SCALES, *CURRENCIES, *"0189 .,'’²٣ſ-"])).map("".join))
def test_the_amounts_of_a_text_are_those_that_a_search_of_every_character_finds(text: str) -> None:
    assert [found.span() for found in amounts(text)] == [found.span() for found in AMOUNT.finditer(text)]


def test_a_text_without_a_hint_is_not_searched() -> None:
    pattern = HintedPattern(r"\d+(?:!|\b)", hint="!")
    assert [found[0] for text in ("1 2!", "1 2") for found in pattern.finditer(text)] == ["1", "2!"]
    assert (pattern.sub(lambda _: "", "1 2!"), pattern.sub(lambda _: "", "1 2")) == (" ", "1 2")


@pytest.mark.parametrize("pattern", FACT_PATTERNS)
@given(data=st.data(), around=st.lists(st.text(max_size=5) | st.sampled_from(" .,-/"), max_size=4))
def test_every_address_has_a_hint(pattern: HintedPattern, data: st.DataObject, around: list[str]) -> None:
    place = data.draw(st.integers(0, len(around)))
    text = "".join([*around[:place], data.draw(st.from_regex(pattern.whole, fullmatch=True)), *around[place:]])
    assert [one.span() for one in pattern.finditer(text)] == [one.span() for one in pattern.whole.finditer(text)]


@pytest.mark.parametrize("month", sorted(MONTHS))
def test_the_name_of_a_month_is_a_key_in_any_letters(month: str) -> None:
    for written in (month, month.upper(), f"in_{month} {month.title()}, or so"):
        assert f"month {MONTHS[month]}" in fact_keys(written, "en").keys


@pytest.mark.parametrize(
    ("words", "keys"),
    [
        ("AB 12_34 x", {"code ab1234", "code 1234", "code 1234x", "code ab1234x"}),
        ("a b1", {"code b1", "code ab1"}),
        ("İ5 ß", {"code i5", "code i5ss"}),
        ("one two", set()),
    ],
)
def test_words_beside_a_digit_are_joined_to_codes(words: str, keys: set[str]) -> None:
    assert {key for key in fact_keys(words, "und").keys if key.startswith("code ")} == keys
