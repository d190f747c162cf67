"""Ends of sentences, and cuts of texts."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from afterword.streams.summarizer.quality.quantities import WORDS_KNOWN
from afterword.streams.text.sentences import cut_at_sentence, cut_at_word, split_sentences


@pytest.mark.parametrize(
    ("text", "sentences"),
    [
        ("One. Two! Three? Four", ["One.", "Two!", "Three?", "Four"]),
        ("Dr. Smith pays $3.50 at 10 a.m. today. Fine.", ["Dr. Smith pays $3.50 at 10 a.m. today.", "Fine."]),
        ("Er wohnt z. B. in Berlin. Ja.", ["Er wohnt z. B. in Berlin.", "Ja."]),
        ('She said "Stop." Then left... and came back.', ['She said "Stop."', "Then left... and came back."]),
        ("我想取消订单。可以吗？好的！", ["我想取消订单。", "可以吗？", "好的！"]),
        ("「はい。」と言った。次", ["「はい。」", "と言った。", "次"]),
        ("मैं जाऊँगा। ठीक है।", ["मैं जाऊँगा।", "ठीक है।"]),
        ("First line\n- second\n\nthird", ["First line", "- second", "third"]),
        ("1. Open it. 2. Close it.", ["1. Open it.", "2. Close it."]),
        ("It costs 20. Then pay.", ["It costs 20.", "Then pay."]),
        ("Added: 4. Budget (300 euros).", ["Added: 4. Budget (300 euros)."]),
        ("van comes at 8am. new flat is in leeds. ok", ["van comes at 8am.", "new flat is in leeds.", "ok"]),
        ("am 3. platz, ca. fünf etc. und so", ["am 3. platz, ca. fünf etc. und so"]),
        ("  \n ", []),
    ],
)
def test_sentences_end_where_a_reader_would_say(text: str, sentences: list[str]) -> None:
    assert split_sentences(text) == sentences


LANGUAGES = {
    "da": [
        "Vi ses den 14. december kl. 15.| Tag hr. Jensen med, f.eks. på fredag.| Det koster ca. 200 kr. i alt.",
        "Hun bor i nr. 12.| Det er bl.a. derfor.| Mødet er den 14.| Derefter går vi.",
        "Kom på fredag, dvs. Den 5. maj går ikke.",
    ],
    "de": [
        "Am Montag, den 14. Dezember, kommt er.| Das ist z. B. am 3. Platz gut.| Im 20. Jahrhundert war es anders.",
        "Herr Dr. Müller wohnt in Nr. 5.| Er zahlt ca. 20 Euro, d. h. wenig.| Gut.",
        "Die Sitzung ist am 24. 12. 2024 um 8 Uhr.| Sie wurde vom 3. Oktober auf den 5. Nov. verlegt.| Ja!",
        "Er kommt am 14.| Dann gehen wir.| Es kostet 20.| Bitte zahlen Sie.",
        "Wir haben Äpfel, Birnen usw.| Danach kam er.| Es kostet 3.50.| Gut.",
        "Er wurde beim 1. FC Köln der 2. Torwart.| Siehe Abs. 3 und S. 12.| Danke.",
        "Ihre Bestellung vom 2. Mai ist da.| Bis zum 31. März gilt Ihr 2. Gutschein.| Viel Freude!",
    ],
    "en": [
        "Dr. Smith met Mr. Jones at No. 10 on Jan. 5, 2024.| I said no.| Then he left.",
        "See Fig. 3, e.g. the left one.| It costs 20.| Then pay.| We bought apples, pears etc.| Then we left.",
        "She lives in the U.S. with J. R. Miller.| It was in Dec.| They left.| Is it Flight No. 12?| Yes.",
    ],
    "es": [
        "El Sr. García vive en la Av. Central, núm. 5.| La Dra. López, p. ej. Ana López, no viene.",
        "¿Vienes el 14 de dic. 2024?| Ud. puede llamar al tel. 555 123.| ¡Hola!| Quiero ir.| Luego comimos.",
    ],
    "fr": [
        "M. Dupont arrive le 14 déc. 2024 avec MM. Martin et Petit.| C'est, p. ex. Paris, possible.",
        "Il a dit non.| Merci !| Voir chap. 3, p. 12.| Des pommes, des poires, etc.| Ensuite il est parti.",
    ],
    "it": [
        "Il sig. Rossi e il dott. Bianchi arrivano il 14 dic. 2024.| Vedi pag. 5 e art. 3.| Va bene?| Sì.",
        "Abbiamo pane, vino ecc.| Poi siamo andati via.| Chiami l'avv. Verdi.",
    ],
    "nl": [
        "Dhr. Jansen en mevr. De Vries komen op 14 dec. 2024.| Neem bijv. Amsterdam.| Zie blz. 12.| Dat is goed.",
        "Hij komt de 14.| Daarna gaan we.| Er waren appels, peren enz.| Toen gingen we.",
    ],
    "pt": [
        "O Sr. Silva mora na Av. Brasil, n. 5.| A Dra. Costa, p. ex. Ana Costa, vem.| Foi em 14 dez. 2024.| Está bem?",
        "Ligue para o tel. 555.| Obrigado!| Fomos ao mar.| Depois comemos.",
    ],
}
"""Texts in the eight languages whose figures are read, with `|` where a sentence ends."""


@pytest.mark.parametrize(("language", "text"), [(name, text) for name, texts in LANGUAGES.items() for text in texts])
def test_sentences_of_eight_languages_end_where_they_end(language: str, text: str) -> None:
    assert split_sentences(text.replace("|", "")) == text.split("| ")


def test_all_languages_are_those_whose_figures_are_read() -> None:
    assert set(LANGUAGES) == WORDS_KNOWN


@given(st.text())
def test_splitting_loses_nothing_but_white_space(text: str) -> None:
    assert "".join("".join(split_sentences(text)).split()) == "".join(text.split())


@given(st.text(), st.integers(2, 60))
def test_a_cut_text_keeps_to_its_limit(text: str, limit: int) -> None:
    for cut in (cut_at_word(text, limit), cut_at_sentence(text, limit)):
        assert len(cut) <= limit
        assert cut == text or cut.endswith("…")


def test_a_long_text_ends_with_a_whole_sentence() -> None:
    assert cut_at_sentence("One two. Three four. Five six seven.", 30) == "One two. Three four. …"


def test_a_long_sentence_ends_with_a_whole_word() -> None:
    assert cut_at_sentence("One two three four five", 16) == "One two three…"
    assert cut_at_word("One two three four five", 8) == "One two…"


def test_a_cut_leaves_no_half_number_where_words_are_written_without_spaces():
    assert cut_at_word("用户要求取消订单号471123456789", 14) == "用户要求取消订单号…"
    assert cut_at_word("退款 用户要求取消订单号471123456789", 16) == "退款 用户要求取消订单号…"


def test_a_word_that_alone_is_too_long_is_cut() -> None:
    assert cut_at_word("x" * 100, 10) == "x" * 9 + "…"


ABBREVIATIONS = Path(__file__).with_name("abbreviations.txt").read_text(encoding="utf-8").splitlines()[1:]


@pytest.mark.parametrize("line", ABBREVIATIONS)
def test_abbreviation_ends_a_sentence_only_where_one_ends(line: str) -> None:
    text = line.replace("|", "").replace("//", "")
    assert split_sentences(text) == [part.strip() for part in line.replace("//", "|").split("|")]
